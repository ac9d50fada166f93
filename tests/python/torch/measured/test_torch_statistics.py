"""Per-tensor statistics against exact sums: every dtype, every p, and what leaves the doubles."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from decimal import Decimal, localcontext
from pathlib import Path

import numpy
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[3]))

from metered import Meter
from reference.exact import power_sum, root

from gradsync._step._row import NOT_TAKEN
from gradsync.torch._statistics import _cpu_sums, _fingerprints, _measurer
from gradsync.torch._statistics._measurer import Measurer

NORMS = [1.0, 2.0, 3.0, 2.5, math.inf]
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


@pytest.fixture(autouse=True, params=["cpu", "elsewhere"])
def by_torch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Torch measures, as on a CPU, and tensors of the CPU as if they were a GPU's. test_kernels.py is about kernels."""
    monkeypatch.setattr(_measurer, "kernel_library", lambda: None)
    if request.param == "elsewhere":
        as_elsewhere(monkeypatch)
    return str(request.param)


def as_elsewhere(monkeypatch: pytest.MonkeyPatch, chunk: int = 1 << 12) -> None:
    monkeypatch.setattr(_measurer, "_CPU", "none")
    monkeypatch.setattr(_measurer, "_WIDENS", "cpu")
    monkeypatch.setattr(_measurer, "_CHUNK_ELSEWHERE", chunk)
    monkeypatch.setattr(_measurer, "_EXACT_ELSEWHERE", chunk // 4)
    monkeypatch.setattr(_fingerprints, "_WIDTH", {})
    monkeypatch.setattr(_fingerprints, "_WIDTH_ELSEWHERE", chunk * 4)


def rows_of(measurer: Measurer, gradients: list, fingerprint: bool) -> torch.Tensor:
    table = torch.empty(len(gradients), 8, dtype=torch.int64)
    measurer.measure(measurer.arrange(gradients, fingerprint), 1, table)
    return table


def measure(gradients: list, p: float, fingerprint: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    kinds = [next((g.numel(), g.dtype, g.device) for g in [gradient]) for gradient in gradients]
    table = rows_of(Measurer(kinds, p), gradients, fingerprint)
    return table, table.view(torch.float64)


def norm_of(numbers: torch.Tensor, row: int, p: float) -> float:
    _, high, low, scale, maximum = numbers[row, :5].tolist()
    if math.isinf(p):
        return maximum
    with localcontext() as context:
        context.prec = 60
        return root((Decimal(high) + Decimal(low)) * Decimal(scale) ** Decimal(p), p)


def check_exact(gradients: list[torch.Tensor], p: float) -> None:
    table, numbers = measure(gradients, p)
    assert table[:, 0].tolist() == [1] * len(gradients)
    assert table[:, 5:].abs().sum() == 0
    for row, gradient in enumerate(gradients):
        values = gradient.double().flatten().tolist()
        maximum = max(map(abs, values), default=0.0)
        exact = maximum if math.isinf(p) else root(power_sum(values, p), p)
        rounded = numpy.float64 if gradient.dtype == torch.float64 else numpy.float32
        found = rounded(norm_of(numbers, row, p))
        assert abs(found - rounded(exact)) <= numpy.spacing(rounded(exact)), (row, found, exact)
        untaken = p in (1, 2) and gradient.dtype is not torch.float64 and maximum > 0
        assert numbers[row, 4] == (NOT_TAKEN if untaken else maximum)
        if not math.isinf(p) and maximum > 0:
            # What the daemon believes of a row.
            largest = (maximum / numbers[row, 3].item()) ** p
            assert largest * (1 - 1e-9) <= numbers[row, 1] <= len(values) * largest * (1 + 1e-9)
            assert abs(numbers[row, 2]) <= numpy.spacing(numbers[row, 1].item())


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sums_are_exact_enough(dtype: torch.dtype, p: float) -> None:
    torch.manual_seed(1)
    sizes = [(7,), (3, 5), (15,), (1,), (), (0,), (2, 0), (1000,), (5, 3)]
    drawn = [(torch.randn(size, dtype=torch.float64) * 3).to(dtype) for size in sizes]
    check_exact([*drawn, torch.zeros(6, dtype=dtype)], p)


@pytest.mark.parametrize("value", [1e-44, 1e-30, 1e30, 2e38])
@pytest.mark.parametrize("p", [*NORMS, 20.0])
def test_float32_never_leaves_the_doubles(value: float, p: float) -> None:
    check_exact([torch.tensor([value, value / 2, 0.0]), torch.tensor([1.0, 2.0, 3.0])], p)


@pytest.mark.parametrize("value", [5e-324, 1e-300, 1e-160, 1e155, 1e300, 8e307])
@pytest.mark.parametrize("p", NORMS)
def test_float64_never_leaves_the_doubles(value: float, p: float) -> None:
    check_exact([torch.tensor([value, -value / 2, value / 3, 0.0], dtype=torch.float64)], p)


@pytest.mark.parametrize("p", [1.0, 2.0])
def test_a_long_float64_gradient_loses_no_bit(p: float) -> None:
    torch.manual_seed(2)
    check_exact([torch.randn(30001, dtype=torch.float64), torch.rand(4097, dtype=torch.float64) + 1e8], p)


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0])
@pytest.mark.parametrize("transposed", [False, True])
def test_large_gradients_are_measured_in_pieces(p: float, transposed: bool) -> None:
    torch.manual_seed(3)
    gradient = torch.randn(700, 1001).t() if transposed else torch.randn(700, 1001)
    _, numbers = measure([gradient], p)
    exact = gradient.double().abs().pow(p).sum()
    assert torch.isclose(numbers[0, 1], exact, rtol=1e-13, atol=0)
    assert numbers[0, 4] == (gradient.abs().max() if p == 3 else NOT_TAKEN)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("p", NORMS)
def test_what_is_not_finite_is_counted_and_left_out(dtype: torch.dtype, p: float) -> None:
    bad = torch.tensor([3.0, math.nan, -4.0, math.inf, -math.inf], dtype=dtype)
    good = torch.ones(5, dtype=dtype)
    empty_of_finite = torch.full((5,), math.nan, dtype=dtype)
    table, numbers = measure([bad, good, empty_of_finite], p)
    assert table[:, 5].tolist() == [3, 0, 5]
    assert table[:, 6].tolist() == [1, 0, 5]
    untaken = p in (1, 2) and dtype is not torch.float64
    assert numbers[:, 4].tolist() == [4.0, NOT_TAKEN if untaken else 1.0, 0.0]
    expected = {1.0: 7.0, 2.0: 25.0, 3.0: 91.0, 2.5: 3**2.5 + 32, math.inf: 0.0}[p]
    assert numbers[0, 1].item() == pytest.approx(expected, rel=1e-15)
    assert numbers[2, 1] == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, math.inf])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_second_look_in_pieces_is_as_exact(
    dtype: torch.dtype, p: float, transposed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_elsewhere(monkeypatch)
    torch.manual_seed(8)
    gradient = torch.randn(77, 101, dtype=torch.float64).to(dtype)  # seven pieces and a part
    gradient = gradient.t() if transposed else gradient
    values = gradient.flatten().tolist()
    for row, column, bad in ((0, 0, math.nan), (40, 50, -math.inf), (76, 76, math.inf)):
        gradient[row, column] = bad
        values[row * gradient.shape[1] + column] = 0.0
    table, numbers = measure([gradient], p)
    assert table[0, 5:7].tolist() == [3, 1]
    assert numbers[0, 4] == max(map(abs, values))
    exact = numbers[0, 4].item() if math.isinf(p) else root(power_sum(values, p), p)
    assert norm_of(numbers, 0, p) == pytest.approx(exact, rel=2e-15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_a_second_look_takes_little_memory_and_few_operations(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces, piece = 4, 1 << 14
    as_elsewhere(monkeypatch, 4 * piece)
    gradient = torch.zeros(pieces * piece, dtype=dtype)
    gradient[7] = math.nan
    measurer = Measurer([(gradient.numel(), dtype, gradient.device)], 2.0)
    table = torch.empty(1, 8, dtype=torch.int64)
    with Meter() as meter:
        measurer.measure(measurer.arrange([gradient]), 1, table)
    assert table[0, 5:7].tolist() == [1, 1]
    wide = dtype is torch.float64  # is measured in this way in the first look too
    assert meter.launches <= (100 if wide else 50) * pieces + (500 if wide else 250)
    assert meter.peak_bytes <= 80 * piece


@pytest.mark.parametrize("p", [1.0, 2.0])
def test_on_a_gpu_torch_moves_nothing_but_the_gradients(p: float, monkeypatch: pytest.MonkeyPatch) -> None:
    as_elsewhere(monkeypatch)
    flat = torch.randn(64 * 500)
    gradients = [*flat.view(64, 500), torch.randn(300, 301), torch.randn(300, 301).bfloat16()]
    measurer = Measurer([(one.numel(), one.dtype, one.device) for one in gradients], p)
    table = torch.empty(len(gradients), 8, dtype=torch.int64)
    arranged = measurer.arrange(gradients)
    with Meter() as meter:
        measurer.measure(arranged, 1, table)
    assert meter.peak_bytes <= 200 * len(gradients)  # of rows
    sums = [one.double().abs().pow(p).sum() for one in gradients]
    assert torch.allclose(table.view(torch.float64)[:, 1], torch.stack(sums), rtol=1e-13, atol=0)


def test_rows_have_no_stamp_before_they_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    gradients = [torch.ones(4), torch.full((5,), math.nan)]
    measurer = Measurer([(one.numel(), one.dtype, one.device) for one in gradients], 2.0)
    table = rows_of(measurer, gradients, True)
    seen: list[list[int]] = []
    for name in ("_measure_blocks", "_look_again"):
        inner = getattr(measurer, name)

        def looked_at(*arguments: object, inner: Callable[..., object] = inner) -> object:
            seen.append(table[:, 0].tolist())
            return inner(*arguments)

        monkeypatch.setattr(measurer, name, looked_at)
    measurer.measure(measurer.arrange(gradients, True), 7, table)
    assert seen == [[-1, -1]] * 2
    assert table[:, 0].tolist() == [7, 7]


def test_no_gradient_has_stamp_zero_and_changes_no_other_row() -> None:
    gradients = [torch.ones(4), torch.full((4,), 2.0), torch.full((4,), 3.0)]
    measurer = Measurer([(4, torch.float32, torch.device("cpu"))] * 3, 2.0)
    table = rows_of(measurer, [gradients[0], None, gradients[2]], True)
    assert table[:, 0].tolist() == [1, 0, 1]
    whole = rows_of(measurer, gradients, True)
    assert torch.equal(table[[0, 2]], whole[[0, 2]])
    assert table.view(torch.float64)[:, 1].tolist() == [4.0, 0.0, 36.0]


def test_memory_order_is_logical_order() -> None:
    gradient = torch.arange(6.0).view(2, 3)
    transposed = gradient.t().contiguous().t()
    assert torch.equal(*(measure([one], 2.0, True)[0] for one in (gradient, transposed)))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [1, 2, 100, 20000, 70000])
def test_a_fingerprint_shows_signs_swaps_and_single_bits(dtype: torch.dtype, size: int) -> None:
    torch.manual_seed(4)
    original = (torch.randn(size) + 5).to(dtype)

    def prints(gradient: torch.Tensor) -> int:
        table, _ = measure([gradient, original], 2.0, True)
        assert table[1, 7] == first
        return int(table[0, 7])

    first = int(measure([original], 2.0, True)[0][0, 7])
    assert first != 0
    assert prints(original.clone()) == first
    for index in {0, size // 2, size - 1}:
        changed = original.clone()
        changed[index] *= -1
        assert prints(changed) != first
        bits = original.clone()
        bits.view(torch.uint8)[index * bits.element_size()] ^= 1
        assert prints(bits) != first
    swapped = original.flip(0)
    assert (prints(swapped) == first) == (size == 1)


def test_zeros_have_a_fingerprint_too() -> None:
    assert measure([torch.zeros(3)], 2.0, True)[0][0, 7] != 0


def slices(flat: torch.Tensor, offsets: list[int], numel: int) -> list[torch.Tensor]:
    return [flat[offset : offset + numel].view(1, -1) for offset in offsets]


@pytest.fixture
def few_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients of one size are measured together, however few there are."""
    monkeypatch.setattr(_measurer, "_LEAST_ALIKE", 1)


@pytest.mark.usefixtures("few_are_enough")
@pytest.mark.parametrize(
    ("offsets", "views"),
    [
        ([0, 5, 10, 15], 1),  # side by side
        ([0, 7, 14, 21], 1),  # with others between them
        ([3, 8, 20, 25, 30, 35, 40, 45, 50, 55, 60, 65, 70, 75, 80, 85], 2),  # two runs
        ([0, 5, 20, 26], 4),  # too few to be worth it
        ([15, 10, 5, 0], 4),  # backwards
        ([0, 2, 4, 6], 4),  # over each other
    ],
)
def test_gradients_of_one_allocation_are_measured_without_a_copy(offsets: list[int], views: int) -> None:
    torch.manual_seed(5)
    flat = torch.randn(100)
    gradients = slices(flat, offsets, 5)
    measurer = Measurer([(5, torch.float32, flat.device)] * len(offsets), 2.0)
    (block,) = measurer.arrange(gradients).blocks
    assert len(block.views) == views
    places = {view.data_ptr() + row * view.stride(0) * 4 for view in block.views for row in range(view.shape[0])}
    assert places == {gradient.data_ptr() for gradient in gradients}
    copied = [gradient.clone() for gradient in gradients]
    assert torch.equal(rows_of(measurer, gradients, True), rows_of(measurer, copied, True))


@pytest.mark.usefixtures("few_are_enough")
def test_what_lies_between_gradients_is_not_multiplied() -> None:
    flat = torch.ones(40)
    measurer = Measurer([(5, torch.float32, flat.device)] * 4, 2.0)
    measurer.arrange(slices(flat, [0, 7, 14, 21], 5)).multiply(0.5)
    expected = torch.ones(40)
    for offset in (0, 7, 14, 21):
        expected[offset : offset + 5] = 0.5
    assert torch.equal(flat, expected)


@pytest.mark.usefixtures("few_are_enough")
def test_neighbours_by_chance_are_not_taken_for_one_allocation() -> None:
    memory = bytearray(400)
    whole = torch.frombuffer(memory, dtype=torch.float32)
    address = whole.data_ptr()
    parts = [torch.frombuffer(memory, dtype=torch.float32, offset=20 * i, count=5) for i in range(4)]
    assert [part.data_ptr() - address for part in parts] == [0, 20, 40, 60]
    assert all(part.untyped_storage().nbytes() == 20 for part in parts)
    (block,) = Measurer([(5, torch.float32, whole.device)] * 4, 2.0).arrange(parts).blocks
    assert not block.joined


@pytest.mark.parametrize("p", [1.0, 2.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_model_of_many_sizes_is_measured_like_each_gradient_alone(
    dtype: torch.dtype, p: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_cpu_sums, "CHUNK", 10_000)  # several batches of small ones
    torch.manual_seed(6)
    sizes = [(3000,), (5,), (70, 70), (5,), (), (64, 5, 3), (2, 3000), (3000,), (300, 7), (1, 5), (4096,), (4097,)]
    gradients = [torch.randn(size).to(dtype) for size in sizes]
    gradients[2] = gradients[2].t()
    for _ in range(3):
        table, numbers = measure(gradients, p)
        assert table[:, 0].tolist() == [1] * len(sizes)
        for row, gradient in enumerate(gradients):
            exact = gradient.double().abs().pow(p).sum()
            assert torch.isclose(numbers[row, 1], exact, rtol=1e-13, atol=0), row
            assert numbers[row, 2:5].tolist() == [0, 1, NOT_TAKEN]
            assert table[row, 5:].tolist() == [0, 0, 0]
        gradients = [gradient.reshape(1, *gradient.shape) for gradient in gradients]  # other shapes, the same sizes


def test_gradients_that_come_and_go_keep_their_rows() -> None:
    torch.manual_seed(7)
    gradients = [torch.randn(size) for size in (7, 5000, 7, 300, 4999)]
    measurer = Measurer([(one.numel(), one.dtype, one.device) for one in gradients], 2.0)
    whole = rows_of(measurer, gradients, False)
    for missing in ([0], [1], [4, 2], [], [0, 1, 2, 3], [3]):
        held = [None if index in missing else one for index, one in enumerate(gradients)]
        rows = rows_of(measurer, held, False)
        assert rows[:, 0].tolist() == [0 if one is None else 1 for one in held]
        kept = [index for index in range(5) if index not in missing]
        assert torch.equal(rows[kept], whole[kept])
        assert torch.equal(rows[missing, 1:3], torch.zeros(len(missing), 2, dtype=torch.int64))


def test_a_gradient_of_zeros_beside_others_has_a_maximum() -> None:
    table, numbers = measure([torch.zeros(5), torch.ones(5000), torch.tensor([math.inf, 3.0])], 2.0)
    assert numbers[:, 1].tolist() == [0.0, 5000.0, 9.0]
    assert numbers[:, 4].tolist() == [0.0, NOT_TAKEN, 3.0]
    assert table[:, 5].tolist() == [0, 0, 1]
