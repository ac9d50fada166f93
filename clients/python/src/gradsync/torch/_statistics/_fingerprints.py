"""Fingerprints of gradients that are rows of one matrix: the function of arithmetic/fingerprint.hpp, bit for bit."""

from __future__ import annotations

import functools

import torch

__all__ = ["FINGERPRINT", "fingerprints"]

FINGERPRINT = "multilinear64"  # its name, which ranks compare: another function shall have another

# Bytes of every row that are looked at together: what a CPU's cache holds; elsewhere each operation is a launch.
_WIDTH = {"cpu": 1 << 18}
_WIDTH_ELSEWHERE = 1 << 24
_VECTOR = 16  # bytes
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


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
    return torch.arange(count, device=device).mul_(_PLACE)


def _vectors(bits: torch.Tensor) -> torch.Tensor:
    """Rows of vectors of two 64-bit numbers, the last one padded with zeros."""
    missing = -bits.shape[1] % (_VECTOR // bits.element_size())
    if missing:
        bits = torch.nn.functional.pad(bits, (0, missing))
    elif bits.storage_offset() * bits.element_size() % 8:
        bits = bits.clone()
    rows, size = len(bits), bits.shape[1] * bits.element_size()
    return bits.reshape(-1).view(torch.int64).view(rows, size // _VECTOR, 2)


def fingerprints(matrix: torch.Tensor) -> torch.Tensor:
    """A fingerprint of every row, from its bytes alone: integer sums are the same in any order, on any device."""
    bits = matrix.contiguous().view(_BITS[matrix.element_size()])
    rows, size = len(bits), bits.shape[1] * bits.element_size()
    width = _WIDTH.get(bits.device.type, _WIDTH_ELSEWHERE)
    total = _mixed(torch.full((rows,), size ^ _LENGTH, device=bits.device))
    for number, piece in enumerate(torch.split(bits, width // bits.element_size(), 1)):
        vectors = _vectors(piece)
        found = _places(vectors.shape[1], bits.device) + _signed(number * (width // _VECTOR) * _PLACE)
        found = found.expand(rows, -1).clone()
        for numbers, high, (key, rest) in zip(vectors.unbind(2), _shifted(vectors, 32).unbind(2), _KEYS, strict=True):
            found.add_(numbers, alpha=key).add_(high, alpha=rest)
        total += _mixed(found).sum(1)
    return total
