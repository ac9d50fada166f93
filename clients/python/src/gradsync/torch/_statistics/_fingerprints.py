"""Fingerprints of gradients that are rows of one matrix: the function of arithmetic/fingerprint.hpp, bit for bit."""

from __future__ import annotations

import functools

import torch

__all__ = ["FINGERPRINT", "fingerprint", "fingerprints", "in_order"]

FINGERPRINT = "multilinear64"  # its name, which ranks compare: another function shall have another

# Bytes that are looked at together: what a CPU's cache holds; elsewhere each operation is a launch.
_WIDTH = {"cpu": 1 << 18}
_WIDTH_ELSEWHERE = 1 << 24
_VECTOR = 16  # bytes
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _signed(value: int) -> int:
    """The int64 of the same 64 bits: torch has no unsigned arithmetic, and that of int64 wraps alike."""
    return (value & ((1 << 64) - 1) ^ (1 << 63)) - (1 << 63)


_K0, _K1, _K2, _K3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63
# w0·K0 + w1·K1 of two words is, of the 64-bit number w0 + 2^32·w1, number·K0 + w1·(K1 - 2^32·K0).
_KEYS = ((_signed(_K0), _signed(_K1 - (_K0 << 32))), (_signed(_K2), _signed(_K3 - (_K2 << 32))))
_PLACE = _signed(0x9E3779B97F4A7C15)
_LENGTH = 0x27D4EB2F165667C5
_FIRST, _SECOND = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)


def _shifted(values: torch.Tensor, shift: int) -> torch.Tensor:
    """The bits moved down; `>>` of int64 repeats the sign, which the mask takes away."""
    return (values >> shift).bitwise_and_((1 << (64 - shift)) - 1)


def _folded(values: torch.Tensor, shift: int) -> torch.Tensor:
    return values.bitwise_xor_(_shifted(values, shift))


def _mixed(values: torch.Tensor) -> torch.Tensor:
    return _folded(_folded(_folded(values, 30).mul_(_FIRST), 27).mul_(_SECOND), 31)


@functools.lru_cache(maxsize=16)
def _places(count: int, device: torch.device) -> torch.Tensor:
    """What tells the vectors that are looked at together from each other."""
    return torch.arange(count, device=device).mul_(_PLACE)


def _numbers(bits: torch.Tensor) -> torch.Tensor:
    """Rows of 64-bit numbers, two for a vector, the last one padded with zeros."""
    missing = -bits.shape[1] % (_VECTOR // bits.element_size())
    if missing:
        bits = torch.nn.functional.pad(bits, (0, missing))
    elif not bits.is_contiguous() or bits.storage_offset() * bits.element_size() % 8:
        bits = bits.clone(memory_format=torch.contiguous_format)
    size = bits.shape[1] * bits.element_size()
    return bits.reshape(-1).view(torch.int64).view(len(bits), size // 8)


def _beginning(rows: int, size: int, device: torch.device) -> torch.Tensor:
    return _mixed(torch.full((rows,), size ^ _LENGTH, device=device))


def _add_vectors(total: torch.Tensor, bits: torch.Tensor, first: int) -> None:
    """Adds the vectors of these rows, of which the first is vector `first` of the whole."""
    numbers = _numbers(bits)
    places = _places(_width(bits.device) // _VECTOR, bits.device)[: numbers.shape[1] // 2]
    found = places + _signed(first * _PLACE)
    found = found.expand(len(bits), -1).clone() if len(bits) > 1 else found[None]
    for column, (key, rest) in enumerate(_KEYS):
        half = numbers[:, column::2]
        found.add_(half, alpha=key).add_(_shifted(half, 32), alpha=rest)
    total += _mixed(found).sum(1)


def fingerprints(matrix: torch.Tensor) -> torch.Tensor:
    """A fingerprint of every row, from its bytes alone: integer sums are the same in any order, on any device."""
    bits = matrix.view(_BITS[matrix.element_size()])
    size = bits.shape[1] * bits.element_size()
    width = _width(bits.device)
    total = _beginning(len(bits), size, bits.device)
    together = max(1, width // max(1, size))
    for rows, part in zip(torch.split(total, together), torch.split(bits, together), strict=True):
        for number, piece in enumerate(torch.split(part, width // bits.element_size(), 1)):
            _add_vectors(rows, piece, number * (width // _VECTOR))
    return total


def fingerprint(tensor: torch.Tensor) -> torch.Tensor:
    """A row of one, for elements in their logical order, whatever their order in memory: no copy of all is made."""
    flat = tensor.detach()
    if flat.is_contiguous():
        return fingerprints(flat.view(1, -1))
    step = _width(flat.device) // flat.element_size()
    total = _beginning(1, flat.numel() * flat.element_size(), flat.device)
    for begin in range(0, flat.numel(), step):
        piece = in_order(flat, begin, min(begin + step, flat.numel()))
        _add_vectors(total, piece.view(_BITS[piece.element_size()])[None], begin * flat.element_size() // _VECTOR)
    return total


def in_order(tensor: torch.Tensor, begin: int, end: int) -> torch.Tensor:
    """Some of the elements in logical order, as a contiguous tensor of one dim; copies little more than these."""
    if tensor.is_contiguous():
        return tensor.view(-1)[begin:end]
    size = tensor.numel() // len(tensor)
    first, last = begin // size, -(-end // size)
    if last - first == 1:
        return in_order(tensor[first], begin - first * size, end - first * size)
    if size >= end - begin:  # two of them, of which much is not wanted
        middle = last * size - size
        return torch.cat([in_order(tensor, begin, middle), in_order(tensor, middle, end)])
    return tensor[first:last].reshape(-1)[begin - first * size : end - first * size]


def _width(device: torch.device) -> int:
    return _WIDTH.get(device.type, _WIDTH_ELSEWHERE)
