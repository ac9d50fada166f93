"""The kernels of the C interface, on memory of the CPU that stands for a device's: rows, products, refusals."""

from __future__ import annotations

import math
import shutil
import sys
from decimal import Decimal, localcontext
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from drop_ins import Norms, backward, net

sys.path.insert(0, str(Path(__file__).parents[3]))

from reference.exact import power_sum, root

import gradsync.torch as gst
from gradsync.errors import UsageError
from gradsync.torch._statistics import _in_kernels, _kernels, _measurer
from gradsync.torch._statistics._fingerprints import fingerprints
from gradsync.torch._statistics._kernels import KernelLibrary, kernel_library
from gradsync.torch._statistics._measurer import Measurer

NORMS = [1.0, 2.0, 3.0, math.inf]
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


@pytest.fixture
def library(emulated_kernels: Path, monkeypatch: pytest.MonkeyPatch) -> KernelLibrary:
    found = KernelLibrary(emulated_kernels)
    monkeypatch.setattr(_measurer, "kernel_library", lambda: found)
    return found


def measurer_of(gradients: list[torch.Tensor], p: float = 2.0) -> Measurer:
    return Measurer([(one.numel(), one.dtype, one.device) for one in gradients], p)


def rows_of(measurer: Measurer, gradients: list[torch.Tensor | None], fingerprint: bool) -> torch.Tensor:
    table = torch.empty(len(gradients), 8, dtype=torch.int64)
    measurer.measure(measurer.arrange(gradients, fingerprint), 7, table)
    return table


def drawn(dtype: torch.dtype) -> list[torch.Tensor]:
    torch.manual_seed(1)
    sizes = [(7,), (3, 5), (1,), (), (0,), (2, 0), (1000,), (5, 3), (300, 301)]
    return [(torch.randn(size, dtype=torch.float64) * 3).to(dtype) for size in sizes]


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_norms_are_within_one_unit_in_the_last_place(dtype: torch.dtype, p: float) -> None:
    gradients = [*drawn(dtype), torch.zeros(6, dtype=dtype)]
    table = rows_of(measurer_of(gradients, p), gradients, False)
    assert table[:, 0].tolist() == [7] * len(gradients)
    assert table[:, 5:].abs().sum() == 0
    for row, gradient in zip(table.view(torch.float64), gradients, strict=True):
        values = gradient.double().flatten().tolist()
        _, high, low, scale, maximum = row[:5].tolist()
        assert maximum == max(map(abs, values), default=0.0)
        with localcontext() as context:
            context.prec = 60
            found = maximum if math.isinf(p) else root((Decimal(high) + Decimal(low)) * Decimal(scale) ** Decimal(p), p)
        exact = maximum if math.isinf(p) else root(power_sum(values, p), p)
        rounded = numpy.float64 if dtype is torch.float64 else numpy.float32
        assert abs(rounded(found) - rounded(exact)) <= numpy.spacing(rounded(exact))


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_fingerprints_are_those_that_torch_computes(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    gradients = [*drawn(dtype), torch.zeros(3, dtype=dtype), torch.randn(6, 4).to(dtype).t()]
    ours = measurer_of(gradients)
    in_rows = rows_of(ours, gradients, True)[:, 7]
    apart = ours.fingerprints(ours.arrange(gradients, True))
    monkeypatch.setattr(_measurer, "kernel_library", lambda: None)
    by_torch = measurer_of(gradients)
    wanted = by_torch.fingerprints(by_torch.arrange(gradients, True))
    there = torch.tensor([one.numel() != 0 for one in gradients])
    assert torch.equal(in_rows[there], wanted[there])
    assert torch.equal(apart[there], wanted[there])


@pytest.mark.usefixtures("library")
def test_rows_say_what_is_not_finite_and_leave_its_sum_out() -> None:
    gradients = [torch.tensor([3.0, math.nan, -4.0, math.inf]), torch.ones(5)]
    table = rows_of(measurer_of(gradients), gradients, False)
    assert table.view(torch.float64)[0, 1:5].tolist() == [0.0, 0.0, 1.0, 4.0]
    assert table[0, 5:7].tolist() == [2, 1]
    assert table.view(torch.float64)[1, 1] == 5.0


@pytest.mark.usefixtures("library")
def test_an_absent_gradient_has_stamp_zero_and_changes_no_other_row() -> None:
    gradients: list[torch.Tensor | None] = list(drawn(torch.bfloat16))
    measurer = measurer_of([one for one in gradients if one is not None])
    whole = rows_of(measurer, gradients, True)
    some = [one if index % 2 else None for index, one in enumerate(gradients)]
    table = rows_of(measurer, some, True)
    assert table[::2, 0].tolist() == [0] * len(table[::2])
    assert torch.equal(table[1::2], whole[1::2])
    prints = measurer.fingerprints(measurer.arrange(some, True))
    assert prints[::2].tolist() == [0] * len(prints[::2])


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_products_have_the_bits_of_torchs(dtype: torch.dtype) -> None:
    gradients = [*drawn(dtype), torch.randn(8, 6).to(dtype).t(), torch.randn(40).to(dtype)[::2]]
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    wanted = [(one.to(wide) * torch.tensor(0.123456789, dtype=wide)).to(dtype) for one in gradients]
    measurer_of(gradients).arrange(gradients).multiply(0.123456789)
    assert all(torch.equal(one, other) for one, other in zip(gradients, wanted, strict=True))


@pytest.mark.usefixtures("library")
def test_dense_gradients_in_another_order_are_read_where_they_are_and_gaps_are_left_to_torch() -> None:
    image = torch.randn(4, 3, 5, 5).to(memory_format=torch.channels_last)
    gaps = torch.randn(40)[::2]
    gradients = [image, gaps, torch.ones(3)]
    measurer = measurer_of(gradients)
    arranged = measurer.arrange(gradients)
    assert [bool(address) for address in arranged.placed[0].addresses] == [True, False, True]
    assert [block.group.members for block in arranged.blocks] == [(1,)]
    checked = measurer.arrange(gradients, True)
    assert [bool(address) for address in checked.placed[0].addresses] == [False, False, True]
    for fingerprint in (False, True):
        sums = rows_of(measurer, gradients, fingerprint).view(torch.float64)[:, 1]
        assert torch.allclose(sums, torch.stack([one.double().square().sum() for one in gradients]), rtol=1e-12)


@pytest.mark.usefixtures("library")
def test_gradients_that_the_library_cannot_read_are_left_to_torch() -> None:
    elsewhere = torch.empty(4, device="meta")
    measurer = Measurer(
        [
            (4, torch.float32, elsewhere.device),
            (4, torch.float32, torch.device("cpu")),
            (4, torch.float32, elsewhere.device),
        ],
        2.0,
    )
    (placed,) = measurer.arrange([None, torch.ones(4), None]).placed
    assert placed.rows.tolist() == [1]


@pytest.mark.usefixtures("library")
def test_gradients_between_others_get_their_own_rows(library: KernelLibrary) -> None:
    """The rows of a device are not always neighbours; here rows of a dtype that is left to torch lie between."""
    kinds = [(4, torch.float32, torch.device("cpu")), (4, torch.float64, torch.device("cpu"))] * 2
    known = dict(_kernels.KERNELS_DTYPES)
    del known[torch.float64]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_in_kernels, "KERNELS_DTYPES", known)
        measurer = Measurer(kinds, 2.0)
    gradients = [torch.full((4,), float(index + 1), dtype=kind[1]) for index, kind in enumerate(kinds)]
    table = rows_of(measurer, gradients, True)
    assert table.view(torch.float64)[:, 1].tolist() == [4.0, 16.0, 36.0, 64.0]
    assert table[:, 0].tolist() == [7] * 4
    assert measurer.measured_by == str(library)


@pytest.mark.usefixtures("library")
def test_a_zeroed_gradient_has_no_nan() -> None:
    gradients = [torch.tensor([math.nan, 1.0]), torch.full((4, 2), math.inf).t()]
    measurer_of(gradients).arrange(gradients).zero()
    assert all(not one.any() for one in gradients)


@pytest.mark.usefixtures("library")
def test_what_the_library_refuses_is_raised_with_its_words() -> None:
    gradients = [torch.ones(4)]
    measurer = measurer_of(gradients)
    arranged = measurer.arrange(gradients)
    arranged.placed[0].addresses[0] += 2
    with pytest.raises(RuntimeError, match=r"tensors\[0\]\.address is \d+, not a multiple"):
        measurer.measure(arranged, 1, torch.empty(1, 8, dtype=torch.int64))


def test_a_device_without_code_is_left_to_torch_with_one_warning(
    library: KernelLibrary, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gradients = drawn(torch.float32)
    by_kernels = rows_of(measurer_of(gradients), gradients, True)
    assert measurer_of(gradients).measured_by == str(library)
    monkeypatch.setenv("GRADSYNC_SIMT_CAPABILITY", "75")
    with pytest.raises(RuntimeError, match="error of the emulated device"):
        rows_of(measurer_of(gradients), gradients, True)  # which was asked before
    old = KernelLibrary(library.path)
    monkeypatch.setattr(_measurer, "kernel_library", lambda: old)
    for _ in range(2):
        measurer = measurer_of(gradients)
        assert measurer.measured_by == "torch (no code for compute capability 7.5)"
        table = rows_of(measurer, gradients, True)
        there = table[:, 7] != 0
        assert torch.equal(table[there, 7], by_kernels[there, 7])
    measurer.arrange(gradients).multiply(0.5)
    assert gradients[0].tolist() == (drawn(torch.float32)[0] * 0.5).tolist()
    assert [record.message for record in caplog.records] == [
        f"torch measures the gradients on cpu, because {old} cannot: no code for compute capability 7.5"
    ]


class EverySecondStep(Norms):
    """Checks every second step, and keeps the fingerprints that come."""

    def __init__(self, daemon: Any) -> None:
        super().__init__(daemon)
        self.seen: list[list[int]] = []

    def step_finish(self, params: dict[str, Any]) -> Any:
        self.seen.append([row[7] for row in self.rows()])
        return super().step_finish(params) | {"check_next": len(self.seen) % 2 == 0}


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("mode", ["clip", "observe"])
def test_gradients_are_arranged_by_the_check_of_their_own_step(mode: str, daemon: Any) -> None:
    """A pass reads memory in its order, which is not the logical order of these gradients."""
    seen = EverySecondStep(daemon).seen
    model = net()
    gst.init(model, address=daemon.path, job="j", rank=0, world_size=1, mode=mode)
    wanted = []
    for step in range(4):
        model.zero_grad()
        backward(model)
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad = parameter.grad.t().contiguous().t()
        prints = [int(fingerprints(p.grad.reshape(1, -1))) % (1 << 64) for p in model.parameters()]  # type: ignore[union-attr]
        wanted.append(prints if step % 2 == 0 else [0] * len(prints))
        gst.clip_grad_norm_(model.parameters(), 1e9)
    gst.close()  # which waits for the last result
    assert seen == wanted


class TestWhichLibrary:
    @pytest.fixture(autouse=True)
    def forgotten(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("GRADSYNC_KERNELS", raising=False)
        monkeypatch.setattr(_kernels, "kernel_library", kernel_library.__wrapped__)

    def test_without_one_torch_measures(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(_kernels, "_BESIDE", tmp_path / "none.so")
        assert _kernels.kernel_library() is None

    def test_the_one_of_the_package_is_found(
        self, emulated_kernels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        beside = tmp_path / "libgradsync_kernels.so"
        shutil.copy(emulated_kernels, beside)
        monkeypatch.setattr(_kernels, "_BESIDE", beside)
        found = _kernels.kernel_library()
        assert found is not None
        assert found.path == str(beside)
        monkeypatch.setenv("GRADSYNC_KERNELS", "off")
        assert _kernels.kernel_library() is None

    def test_one_that_was_named_has_to_be_there(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GRADSYNC_KERNELS", str(tmp_path / "none.so"))
        with pytest.raises(UsageError, match=r"GRADSYNC_KERNELS=.*none\.so.*'off'"):
            _kernels.kernel_library()

    def test_a_strange_library_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GRADSYNC_KERNELS", "libc.so.6")
        with pytest.raises(UsageError, match=r"libc\.so\.6 is no libgradsync_kernels\.so"):
            _kernels.kernel_library()

    def test_another_interface_is_refused_with_both_numbers(
        self, emulated_kernels: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("GRADSYNC_KERNELS", str(emulated_kernels))
        monkeypatch.setattr(_kernels, "_ABI", 99)
        with pytest.raises(UsageError, match="has interface 3, and this client has 99"):
            _kernels.kernel_library()

    def test_one_of_the_package_that_does_not_load_is_warned_of(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        beside = tmp_path / "libgradsync_kernels.so"
        beside.write_bytes(b"no library")
        monkeypatch.setattr(_kernels, "_BESIDE", beside)
        assert _kernels.kernel_library() is None
        assert "so torch measures the gradients" in caplog.text
