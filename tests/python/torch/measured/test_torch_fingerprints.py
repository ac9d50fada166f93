"""Fingerprints are those of arithmetic/fingerprint.hpp: the same table, bit for bit, whatever the dtype and memory."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from gradsync.torch._statistics import _fingerprints  # noqa: E402

TABLE = Path(__file__).parents[3] / "unit" / "arithmetic" / "fingerprint_table.inc"
ROWS = [
    (bytes.fromhex(values), int(fingerprint, 16))
    for values, fingerprint in re.findall(r'^\{"([0-9a-f]*)", 0x([0-9a-f]+)ULL\},$', TABLE.read_text(), re.MULTILINE)
]
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def fingerprint_of(values: bytes, dtype: torch.dtype) -> int:
    numbers = torch.tensor(list(values), dtype=torch.uint8).view(dtype)
    (found,) = _fingerprints.fingerprints(numbers.view(1, -1)).tolist()
    return int(found) % (1 << 64)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_table_holds(dtype: torch.dtype) -> None:
    rows = [row for row in ROWS if len(row[0]) % dtype.itemsize == 0]
    assert len(rows) > 10
    for values, wanted in rows:
        assert fingerprint_of(values, dtype) == wanted, values.hex()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_pieces_and_places_in_memory_do_not_matter(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    bits = torch.arange(3 * 41 * dtype.itemsize, dtype=torch.uint8).view(dtype).view(3, 41)
    alone = [fingerprint_of(bytes(row.contiguous().view(torch.uint8).tolist()), dtype) for row in bits[:, 1:]]
    assert len(set(alone)) == 3
    for width in (_fingerprints._WIDTH["cpu"], 64):
        monkeypatch.setitem(_fingerprints._WIDTH, "cpu", width)
        together = _fingerprints.fingerprints(bits[:, 1:]).tolist()
        assert [found % (1 << 64) for found in together] == alone
        one_by_one = [_fingerprints.fingerprints(bits[row : row + 1, 1:]).item() for row in range(3)]
        assert one_by_one == together


class Counted(TorchDispatchMode):
    """Counts what torch executes; on a GPU each is a launch."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_elsewhere_than_on_a_cpu_few_operations_do() -> None:
    with Counted() as counted:
        _fingerprints.fingerprints(torch.empty(1, 1 << 24, device="meta"))
    assert counted.count <= 200  # for 16 Mi numbers
