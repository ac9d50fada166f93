"""The calls by which a rank's memory and tensors get to a daemon. They belong to the thread that declares.

Each says which daemon it means: memory and plans of one are nothing to the next. SessionMoved: that one is gone.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ._arena import Arena, fetch_fd, give_fd, map_arena, map_for_reading
from ._channel import PATIENCE_S, Channel
from ._record import StepRecord
from ._wire import dump
from .errors import GradsyncError

__all__ = ["QUICK_S", "Declaring"]

_log = logging.getLogger("gradsync")

QUICK_S = 30.0
_PAGE_BYTES = 400_000  # of tensors per message: about 10 ms of the daemon's only io thread; the cap is 1 MiB


class Declaring:
    """Of one attached rank."""

    def __init__(self, channel: Channel, rank: int, extend: Callable[[], bool]) -> None:
        """`extend` may grant a declaration that waits for other ranks another round."""
        self._channel = channel
        self._rank = rank
        self._extend = extend

    def allocate(self, size_bytes: int, seat: str) -> tuple[int, Arena]:
        """New memory and its number.

        Raises:
            InsufficientMemory: it cannot be had.
            RpcError: the daemon refused it.
        """
        grant = self._call("buffers.allocate", dump({"bytes": size_bytes, "device": "cpu"}), seat)
        buffer: int = grant["buffer"]
        try:
            return buffer, map_arena(fetch_fd(self._channel.fd_socket_path, grant["token"], QUICK_S), grant["bytes"])
        except BaseException:
            self.release(buffer, seat)
            raise

    def adopt(self, arena: Arena, seat: str) -> int:
        """Hands memory that a daemon before this one gave out to this one; its number from now on.

        Raises:
            RpcError: the daemon refused it.
        """
        grant = self._call("buffers.adopt", dump({"bytes": arena.size_bytes, "device": "cpu"}), seat)
        give_fd(self._channel.fd_socket_path, grant["token"], arena.fd, QUICK_S)
        buffer: int = grant["buffer"]
        return buffer

    def release(self, buffer: int, seat: str) -> None:
        """Gives memory back, its pages too. What cannot be released now goes with the session."""
        with contextlib.suppress(GradsyncError):
            self._channel.post("buffers.release", dump({"buffer": buffer}), PATIENCE_S, seat=seat)

    def declare(
        self,
        buffer: int,
        options: str,
        wires: Sequence[str],
        timeout: float | None,
        seat: str,
        last_done: tuple[int, int] | None = None,
    ) -> dict[str, Any]:
        """gradients.declare, page by page; the answer, once all ranks declared.

        `last_done`: epoch and attempt of the last step that a daemon before this one did, for its policies to go on.

        Raises:
            RpcError: the daemon refused it, the ranks differ, or not all declared in time.
        """
        pages = _pages(wires)
        limit = self._channel.deadlines.declare_s if timeout is None else timeout
        reply: dict[str, Any] = {}
        for number, page in enumerate(pages):
            last = number == len(pages) - 1
            fields = [f'"buffer":{buffer}', f'"page":{number}', f'"last":{"true" if last else "false"}']
            if number == 0:
                fields.append(f'"options":{options}')
            if timeout is not None and last:
                fields.append(f'"timeout_ms":{max(1, round(timeout * 1000))}')
            if last_done is not None and last:
                fields.append(f'"last_done":{{"epoch":{last_done[0]},"attempt":{last_done[1]}}}')
            fields.append(f'"tensors":[{",".join(page)}]')
            reply = self._channel.call(
                "gradients.declare",
                "{" + ",".join(fields) + "}",
                timeout=limit if last else QUICK_S,
                idempotent=False,
                session=True,
                seat=seat,
                extend=self._extend if last else None,
            )
        return reply

    def record(self, reply: Mapping[str, Any], seat: str) -> StepRecord | None:
        """The record of the plan that was declared; None of a daemon that keeps none, or does not hand it out."""
        offer = reply.get("record")
        if offer is None:
            return None
        try:
            fd = fetch_fd(self._channel.fd_socket_path, offer["token"], QUICK_S)
            return StepRecord(map_for_reading(fd, offer["bytes"]), self._rank)
        except GradsyncError as error:
            self._channel.check_seat(seat, QUICK_S)  # else it is no wonder
            _log.warning("a restart of the daemon will end this rank, for its step record cannot be had: %s", error)
            return None

    def _call(self, method: str, params: str, seat: str) -> Any:
        return self._channel.call(method, params, timeout=QUICK_S, idempotent=False, session=True, seat=seat)


def _pages(wires: Sequence[str]) -> list[list[str]]:
    pages: list[list[str]] = [[]]
    used = 0
    for wire in wires:
        if pages[-1] and used + len(wire) > _PAGE_BYTES:
            pages.append([])
            used = 0
        pages[-1].append(wire)
        used += len(wire) + 1
    return pages
