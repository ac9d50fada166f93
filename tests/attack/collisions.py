"""Names of 16 letters that collide in `std::hash` of libstdc++: all of their 64 bits are equal.

That hash takes a text in words of eight bytes: each is mixed by steps that can be undone, added by XOR, and the sum
multiplied. So for any first word there is exactly one second word that leads to a chosen hash. One in 3,000 of those
is printable; the first words are counted up until there are enough."""

from __future__ import annotations

import ctypes
import functools
import itertools

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
MULTIPLIER, SEED, LENGTH = 0xC6A4A7935BD1E995, 0xC70F6907, 16
INVERSE = pow(MULTIPLIER, -1, 1 << 64)
AIM = 0x0123456789ABCDEF  # where all are after two words
SHIFT, TIMES, BACK = np.uint64(47), np.uint64(MULTIPLIER), np.uint64(INVERSE)
LETTERS = np.frombuffer(b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_", np.uint8)


def _mixed(words: Words) -> Words:
    words = words * TIMES
    return (words ^ (words >> SHIFT)) * TIMES


def _unmixed(words: Words) -> Words:
    words = words * BACK
    return (words ^ (words >> SHIFT)) * BACK


def _printable(words: Words) -> npt.NDArray[np.bool_]:
    """None of their bytes is a control character, a quote, a backslash or above 126."""
    found = (words & np.uint64(0x8080808080808080)) == 0
    text = words[found].view(np.uint8).reshape(-1, 8)
    found[found] = ((text > 32) & (text != 34) & (text != 92) & (text != 127)).all(axis=1)
    return found


def _first_words(block: int) -> Words:
    """A block of 64^3 of them that differ in three letters."""
    places = np.arange(64**3)
    text = np.full((len(places), 8), ord("x"), np.uint8)
    for column in range(3):
        text[:, column] = LETTERS[places >> (6 * column) & 63]
    for column in range(3, 8):
        text[:, column] = LETTERS[block >> (6 * (column - 3)) & 63]
    return text.view(np.uint64).reshape(-1)


@functools.cache
def colliding_names(number: int) -> list[str]:
    names: list[str] = []
    begin = np.uint64(SEED ^ (LENGTH * MULTIPLIER & (1 << 64) - 1))
    for block in itertools.count():
        first = _first_words(block)
        second = _unmixed(((begin ^ _mixed(first)) * TIMES) ^ np.uint64(AIM))
        chosen = _printable(second)
        both = np.stack([first[chosen], second[chosen]], axis=1)
        names += [row.tobytes().decode() for row in both]
        if len(names) >= number:
            return names[:number]
    raise AssertionError


def standard_hash(name: str) -> int:
    """What `std::hash<std::string>` of this machine's libstdc++ makes of it."""
    function = ctypes.CDLL("libstdc++.so.6")._ZSt11_Hash_bytesPKvmm
    function.restype = ctypes.c_size_t
    function.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t]
    text = name.encode()
    return int(function(text, len(text), SEED))
