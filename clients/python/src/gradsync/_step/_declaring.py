"""The calls by which a rank's memory and tensors get to a daemon. They belong to the thread that declares.

Each call names the daemon that it is for, because a restarted daemon knows no memory and no plan of the one before it.
A call for a daemon that is gone raises SessionMoved.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gradsync._session._rank_session import RankSession
from gradsync._wire import dump
from gradsync.errors import GradsyncError

from ._arena import Arena, fetch_fd, give_fd, map_arena, map_for_reading
from ._record import StepRecord, attempt_of

if TYPE_CHECKING:
    from gradsync._gpu._arena import GpuArena

__all__ = ["QUICK_S", "ComesBack", "Declared", "Declaring"]

_log = logging.getLogger("gradsync")

QUICK_S = 30.0
_SHORTEST_S = 0.05  # what a descriptor is given even where the timeout has passed
_PAGE_BYTES = 400_000  # bytes of tensors per message: about 10 ms of the daemon's only io thread; the cap is 1 MiB


@dataclass(frozen=True, slots=True)
class ComesBack:
    """What a rank knows of the daemon before the one that it declares at."""

    last_done: tuple[int, int] | None  #: epoch and attempt of the last step that was done
    doubt: int | None = None  #: stamp of the attempt that its call waits for, voted on and not known to be done
    has_record: bool = False  #: the record of that daemon was read

    def params(self) -> dict[str, Any]:
        """The fields of gradients.declare."""
        known: dict[str, Any] = {"comes_back": True} if self.has_record else {}
        if self.last_done is not None:
            known["last_done"] = _attempt(*self.last_done)
        if self.doubt is not None:
            known["doubt"] = _attempt(*attempt_of(self.doubt))
        return known


def _attempt(epoch: int, attempt: int) -> dict[str, int]:
    return {"epoch": epoch, "attempt": attempt}


@dataclass(frozen=True, slots=True)
class Declared:
    """Memory, its number at the daemon, and what the daemon answered to the declaration of what is in it."""

    buffer: int
    arena: Arena | GpuArena
    reply: dict[str, Any]
    record: StepRecord | None


class Declaring:
    """Sends the declarations of one attached rank."""

    def __init__(
        self, session: RankSession, rank: int, extend: Callable[[], bool], on_slow: Callable[[str], None]
    ) -> None:
        """`extend` may grant a declaration that waits for other ranks another round; `on_slow` says that it waits."""
        self._session = session
        self._fd_socket_path = session.channel.fd_socket_path
        self._rank = rank
        self._extend = extend
        self._on_slow = on_slow
        self.measured_by = ""  #: said with each declaration

    def allocate(self, size_bytes: int, seat: str, timeout: float | None) -> tuple[int, Arena]:
        """New memory and its number; `timeout` is the caller's, or None.

        Raises:
            InsufficientMemory: it cannot be had.
            RpcError: the daemon refused it.
        """
        began = time.monotonic()
        grant = self._call("buffers.allocate", {"bytes": size_bytes, "device": "cpu"}, seat, timeout)
        buffer: int = grant["buffer"]
        try:
            fd = fetch_fd(self._fd_socket_path, grant["token"], _quick(timeout, began))
            return buffer, map_arena(fd, grant["bytes"])
        except BaseException:
            self.release(buffer, seat)
            raise

    def adopt(self, arena: Arena | GpuArena, seat: str, timeout: float | None) -> int:
        """Hands memory to the daemon that another one gave out, or that lies on a GPU; its number from now on.

        Raises:
            NoGpu: the daemon sees no such GPU.
            ImportRefused: CUDA does not share it, or the daemon's worker cannot map it.
            RpcError: the daemon refused it.
        """
        if not isinstance(arena, Arena):
            registered: int = self._call("buffers.register", arena.registration(), seat, timeout)["buffer"]
            return registered
        began = time.monotonic()
        grant = self._call("buffers.adopt", {"bytes": arena.size_bytes, "device": "cpu"}, seat, timeout)
        give_fd(self._fd_socket_path, grant["token"], arena.fd, _quick(timeout, began))
        buffer: int = grant["buffer"]
        return buffer

    def release(self, buffer: int, seat: str) -> None:
        """Gives memory back, its pages too. What cannot be released now goes with the session."""
        with contextlib.suppress(GradsyncError):
            self._session.post("buffers.release", {"buffer": buffer}, seat)

    def declare(
        self,
        buffer: int,
        options: Mapping[str, Any],
        wires: Sequence[Mapping[str, Any]],
        timeout: float | None,
        seat: str,
        back: ComesBack,
    ) -> dict[str, Any]:
        """gradients.declare, page by page; the answer, once all ranks declared.

        Raises:
            StepInDoubt: nobody knows what came of the attempt in doubt.
            RpcError: the daemon refused it, the ranks differ, or not all declared in time.
        """
        pages = _pages(wires)
        began = time.monotonic()
        reply: dict[str, Any] = {}
        for number, page in enumerate(pages):
            last = number == len(pages) - 1
            left = _left(timeout, began)
            limit = self._session.welcome.declare_s if left is None else left
            params: dict[str, Any] = {"buffer": buffer, "page": number, "last": last, "tensors": page}
            if number == 0:
                params["options"] = options
                if self.measured_by:
                    params["measured_by"] = self.measured_by
            if last and left is not None:
                params["timeout_ms"] = max(1, round(left * 1000))
            if last:
                params |= back.params()
            reply = self._session.call(
                "gradients.declare",
                params,
                timeout=limit if last else min(QUICK_S, limit),
                seat=seat,
                extend=self._extend if last else None,
                on_slow=self._on_slow if last else None,
                whole=timeout is not None,
            )
        return reply

    def share(
        self,
        size_bytes: int,
        options: Mapping[str, Any],
        wires: Sequence[Mapping[str, Any]],
        timeout: float | None,
        seat: str,
        last_done: tuple[int, int] | None,
        on_gpu: GpuArena | None = None,
    ) -> Declared:
        """Memory, and the declaration of what is in it, within `timeout`; on failure the memory is given back.

        It is new memory of the CPU, or that of this process on a GPU.

        Raises:
            InsufficientMemory: the memory cannot be had.
            RpcError: the daemon refused it, the ranks differ, or not all declared in time.
        """
        began = time.monotonic()
        arena: Arena | GpuArena
        if on_gpu is None:
            buffer, arena = self.allocate(size_bytes, seat, timeout)
        else:
            buffer, arena = self.adopt(on_gpu, seat, timeout), on_gpu
        try:
            reply = self.declare(buffer, options, wires, _left(timeout, began), seat, ComesBack(last_done))
            return Declared(buffer, arena, reply, self.record(reply, seat))
        except BaseException:
            self.release(buffer, seat)
            raise

    def record(self, reply: Mapping[str, Any], seat: str) -> StepRecord | None:
        """The record of the plan that was declared; None of a daemon that keeps none, or does not hand it out."""
        offer = reply.get("record")
        if offer is None:
            return None
        try:
            fd = fetch_fd(self._fd_socket_path, offer["token"], QUICK_S)
            return StepRecord(map_for_reading(fd, offer["bytes"]), self._rank)
        except GradsyncError as error:
            self._session.check_seat(seat, QUICK_S)  # raises if the daemon was restarted, which explains the error
            _log.warning("a restart of the daemon will end this rank, for its step record cannot be had: %s", error)
            return None

    def _call(self, method: str, params: Mapping[str, Any], seat: str, timeout: float | None) -> Any:
        limit = QUICK_S if timeout is None else min(QUICK_S, timeout)
        return self._session.call(method, params, timeout=limit, seat=seat, whole=timeout is not None)


def _left(timeout: float | None, began: float) -> float | None:
    """Seconds that are left of the caller's timeout; None where the caller gave none."""
    return None if timeout is None else max(0.0, began + timeout - time.monotonic())


def _quick(timeout: float | None, began: float) -> float:
    """Seconds for the transfer of a descriptor: at most those that are left of the caller's timeout."""
    left = _left(timeout, began)
    return QUICK_S if left is None else min(QUICK_S, max(_SHORTEST_S, left))


def _pages(wires: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    pages: list[list[Mapping[str, Any]]] = [[]]
    used = 0
    for wire in wires:
        size = len(dump(wire))
        if pages[-1] and used + size > _PAGE_BYTES:
            pages.append([])
            used = 0
        pages[-1].append(wire)
        used += size + 1
    return pages
