"""Digests of weights: one number for equal weights whoever reads them, few operations, one copy to the host."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from metered import Meter

from gradsync.torch._digests import weight_digests
from gradsync.torch._statistics import _fingerprints, _measurer
from gradsync.torch._statistics._kernels import KernelLibrary

DTYPES = [
    torch.float64,
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float8_e4m3fn,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.complex128,
]

TEXTS = [
    f"multilinear64:{one}" for one in ("e35a4e4d6855f1c5", "4c9b249ef6277630", "051109d83339f221", "1a60adaa9650e592")
]


@pytest.fixture(params=["torch", "library"])
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    library = None if request.param == "torch" else KernelLibrary(request.getfixturevalue("emulated_kernels"))
    monkeypatch.setattr(_measurer, "kernel_library", lambda: library)
    return str(request.param)


def drawn(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    torch.manual_seed(1)
    size = math.prod(shape) * dtype.itemsize
    bits = torch.randint(0, 2 if dtype is torch.bool else 256, (size,), dtype=torch.uint8)
    return bits.view(dtype).view(shape)


@pytest.mark.usefixtures("reader")
def test_the_library_and_torch_say_the_same() -> None:
    """Ranks with and without it are compared, so these are texts, not one way beside the other."""
    weights = [torch.arange(5.0), torch.arange(6.0).view(2, 3).bfloat16(), torch.tensor([True, False]), torch.zeros(0)]
    assert weight_digests(weights) == TEXTS


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_bit_counts_and_so_do_dtype_and_shape(dtype: torch.dtype, reader: str) -> None:
    weight = drawn(dtype, 5, 9, 4)
    (one,) = weight_digests([weight])
    assert weight_digests([weight.clone(), weight]) == [one, one]
    for at in (0, 97, weight.numel() * dtype.itemsize - 1):
        changed = weight.clone()
        changed.view(torch.uint8).view(-1)[at] ^= 1
        assert weight_digests([changed]) != [one]
    assert weight_digests([weight.view(9, 5, 4)]) != [one]
    if dtype.itemsize == 4:
        assert weight_digests([weight.view(torch.float32 if dtype is torch.int32 else torch.int32)]) != [one]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8, torch.complex64], ids=str)
@pytest.mark.parametrize("width", [64, 256, 1 << 18])
def test_the_order_in_memory_does_not_count(
    dtype: torch.dtype, width: int, reader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(_fingerprints._WIDTH, "cpu", width)
    weight = drawn(dtype, 7, 9, 6, 5)
    others = [
        weight.to(memory_format=torch.channels_last),
        weight.transpose(0, 3).contiguous().transpose(0, 3),
        torch.stack([weight, weight], 4)[..., 1],
        weight[:1].expand(7, 9, 6, 5),
    ]
    wanted = weight_digests([one.contiguous() for one in others])
    assert weight_digests(others) == wanted
    assert wanted[0] == wanted[1] == wanted[2] != wanted[3]


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of a CPU are treated as those of a device where each operation is a launch."""
    monkeypatch.setattr(_measurer, "kernel_library", lambda: None)
    monkeypatch.setattr(_fingerprints, "_WIDTH", {})


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8], ids=str)
@pytest.mark.parametrize("contiguous", [True, False])
def test_few_operations_and_little_memory_do(dtype: torch.dtype, contiguous: bool) -> None:
    chunks = 3
    numel = chunks * _fingerprints._WIDTH_ELSEWHERE // dtype.itemsize
    weight = torch.zeros(2, numel // 2, dtype=dtype)
    if not contiguous:
        weight = torch.zeros(numel // 2, 2, dtype=dtype).t()
    with Meter() as meter:
        weight_digests([weight])
    assert meter.launches <= 30 * (chunks + 1)
    assert meter.peak_bytes <= (2 if contiguous else 3) * _fingerprints._WIDTH_ELSEWHERE


@pytest.mark.usefixtures("elsewhere")
def test_all_come_to_the_host_in_one_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[int] = []
    inner = torch.Tensor.cpu

    def cpu(tensor: torch.Tensor, *arguments: Any) -> torch.Tensor:
        copied.append(tensor.numel() * tensor.element_size())
        return inner(tensor, *arguments)

    monkeypatch.setattr(torch.Tensor, "cpu", cpu)
    weight_digests([torch.zeros(1000), torch.zeros(3, 5).t(), torch.zeros(7).bfloat16(), *torch.zeros(40, 9).unbind()])
    assert copied == [8 * 43]
