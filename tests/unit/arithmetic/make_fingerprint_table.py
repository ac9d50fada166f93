"""Writes fingerprint_table.inc: bytes and their fingerprint, by the formula of arithmetic/fingerprint.hpp."""

import pathlib
import random

KEYS = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63)
PLACE = 0x9E3779B97F4A7C15
LENGTH = 0x27D4EB2F165667C5
MASK = (1 << 64) - 1


def mixed(value: int) -> int:
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & MASK
    return value ^ value >> 31


def fingerprint(values: bytes) -> int:
    total = mixed(len(values) ^ LENGTH)
    for number, first in enumerate(range(0, len(values), 16)):
        vector = values[first : first + 16].ljust(16, b"\0")
        words = [int.from_bytes(vector[at : at + 4], "little") for at in range(0, 16, 4)]
        total += mixed(sum(word * key for word, key in zip(words, KEYS, strict=True)) + number * PLACE & MASK)
    return total & MASK


def main() -> None:
    numbers = random.Random(21)
    fixed = [b"", bytes(8), bytes(16), b"\xff" * 16, b"\x80" * 24, bytes(31) + b"\1"]
    drawn = [numbers.randbytes(size) for size in (2, 4, 6, 8, 12, 14, 16, 18, 24, 32, 40, 48, 64, 72, 100, 128, 200)]
    lines = ["// Made by make_fingerprint_table.py: bytes in hexadecimal, their fingerprint."]
    lines += [f'{{"{values.hex()}", 0x{fingerprint(values):016x}ULL}},' for values in fixed + drawn]
    path = pathlib.Path(__file__).with_name("fingerprint_table.inc")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
