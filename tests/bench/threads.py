"""What the kernel counts of a process and of each of its threads."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ALLOCATION_ROWS = 64  # of count_allocations.cpp, as its rows are
_ROW = struct.Struct("=QQ")


@dataclass(frozen=True)
class ThreadCounts:
    """Since the thread began."""

    name: str
    faults: int
    cpu_ns: int


def threads_of(pid: int) -> dict[int, ThreadCounts]:
    """By thread id."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        text = (task / "stat").read_text()
        fields = text[text.rindex(")") + 2 :].split()
        minor, major = int(fields[7]), int(fields[9])
        cpu_ns = int((task / "schedstat").read_text().split()[0])
        found[int(task.name)] = ThreadCounts((task / "comm").read_text().strip(), minor + major, cpu_ns)
    return found


def cpu_seconds_of(pids: Iterable[int]) -> float:
    """CPU that all threads of these processes have taken so far; threads that have ended are not counted."""
    return sum(thread.cpu_ns for pid in pids for thread in threads_of(pid).values()) / 1e9


def allocations_in(file: Path) -> dict[int, int]:
    """Allocations of each thread so far, from the file that libbench_allocations.so counts in."""
    data = file.read_bytes()
    rows = [_ROW.unpack_from(data, index * _ROW.size) for index in range(ALLOCATION_ROWS)]
    return {thread: allocations for thread, allocations in rows if thread}


def empty_allocations(file: Path) -> None:
    file.write_bytes(bytes(ALLOCATION_ROWS * _ROW.size))


def memory_beyond_arenas(pid: int) -> float:
    """MiB that are resident, but for mappings of memfds."""
    kib, counts = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        first, *rest = line.split()
        if not first.endswith(":"):  # the head of a mapping: addresses, rights, offset, device, inode, path
            counts = not (len(rest) >= 5 and rest[4].startswith("/memfd:"))
        elif first == "Rss:" and counts:
            kib += int(rest[0])
    return kib / 1024
