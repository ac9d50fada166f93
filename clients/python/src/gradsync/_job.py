"""One rank of one job: declare, pause, detach. Holds what fences the steps."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from ._arena import Arena, fetch_fd, map_arena
from ._channel import PATIENCE_S
from ._grads import Grads
from ._options import encode_options
from ._output import arena_bytes
from ._reduced import ReducedGrads, check_stats_arguments, table_bytes
from ._tensor import Clip, Mesh, Tensor
from ._wire import dump
from .errors import GradsyncError, UsageError

if TYPE_CHECKING:
    from ._client import Client

__all__ = ["Job"]

_PAGE_BYTES = 900_000  # of tensors per message; the cap is 1 MiB
_QUICK_S = 30.0


class Job:
    """What `Client.attach` returns. `epoch` and `attempt` are the ones the next step call carries."""

    def __init__(
        self,
        client: Client,
        name: str,
        rank: int,
        world_size: int,
        meshes: Mapping[str, Mesh],
        reply: Mapping[str, Any],
    ) -> None:
        self.client = client
        self.name = name
        self.rank = rank
        self.world_size = world_size
        self.meshes = dict(meshes)
        self.epoch: int = reply["epoch"]
        self.attempt: int = reply["attempt"]
        self.last_step: int = reply["last_step"]
        self.resumed: bool = reply["resumed"]
        self.next_step: int = self.last_step + 1
        self._buffer: int | None = None
        self._grads: Grads | ReducedGrads | None = None
        self._detached = False
        self._channel = client._channel
        self.notify = self._channel.notify  # text of a notification; any thread, never waits for an answer

    @property
    def grads(self) -> Grads | ReducedGrads | None:
        """What is declared now."""
        return self._grads

    @overload
    def declare(
        self,
        tensors: Sequence[Tensor],
        *,
        data_path: Literal["arena"] = "arena",
        accumulate: int = 1,
        norm_type: float = 2.0,
        clip: Clip | Mapping[str, Clip] | None = None,
        mode: Literal["strict", "torch"] = "strict",
        buckets: Literal["default", "torch"] = "default",
        timeout: float | None = None,
    ) -> Grads: ...

    @overload
    def declare(
        self,
        tensors: Sequence[Tensor],
        *,
        data_path: Literal["stats"],
        accumulate: int = 1,
        norm_type: float = 2.0,
        clip: Clip | Mapping[str, Clip] | None = None,
        mode: Literal["strict", "torch"] = "strict",
        timeout: float | None = None,
    ) -> ReducedGrads: ...

    def declare(
        self,
        tensors: Sequence[Tensor],
        *,
        data_path: Literal["arena", "stats"] = "arena",
        accumulate: int = 1,
        norm_type: float = 2.0,
        clip: Clip | Mapping[str, Clip] | None = None,
        mode: Literal["strict", "torch"] = "strict",
        buckets: Literal["default", "torch"] = "default",
        timeout: float | None = None,
    ) -> Grads | ReducedGrads:
        """Declares this rank's gradients and waits for all ranks; a new declaration replaces the one before.

        `data_path` "arena" shares memory that the sidecar reduces; with "stats" the framework has reduced, each rank
        declares what it holds (nothing, perhaps) and hands over statistics. `buckets` "torch" reduces those tensors
        together that torch's DistributedDataParallel would, in its order, whatever sizes the daemon was given.

        Raises:
            UsageError: the arguments contradict each other.
            InsufficientMemory: the arena does not fit.
            RpcError: the daemon refused it, the ranks differ, or not all declared in time.
        """
        self._check_attached()
        options = encode_options(data_path, accumulate, norm_type, clip, mode, buckets)
        only_mesh = next(iter(self.meshes)) if len(self.meshes) == 1 else None
        wires = [dump(tensor.encode(only_mesh)) for tensor in tensors]
        _check_names(tensors)
        if data_path == "stats":
            check_stats_arguments(accumulate, tensors)

        size_bytes = table_bytes(tensors) if data_path == "stats" else arena_bytes(tensors, self.meshes)
        buffer, arena = self._allocate(size_bytes)
        try:
            reply = self._declare_pages(buffer, dump(options), wires, timeout)
        except BaseException:
            self._release(buffer)
            raise
        grads: Grads | ReducedGrads
        if data_path == "stats":
            grads = ReducedGrads(self, tensors, arena, reply, options)
        else:
            grads = Grads(self, tensors, accumulate, arena, reply)
        self.advance(reply["epoch"], reply["attempt"])
        if self._grads is not None:
            self._grads.retire()
        if self._buffer is not None:
            self._release(self._buffer)
        self._buffer, self._grads = buffer, grads
        return grads

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """While this is open (evaluation, a checkpoint) no deadline that waits for this rank runs out."""
        self._check_attached()
        on, off = dump({"paused": True}), dump({"paused": False})
        self._channel.call("job.pause", on, timeout=_QUICK_S, idempotent=True, session=True)
        try:
            yield
        except BaseException:
            with contextlib.suppress(GradsyncError):  # the caller's error is the one to see
                self._channel.post("job.pause", off, PATIENCE_S)
            raise
        self._channel.call("job.pause", off, timeout=_QUICK_S, idempotent=True, session=True)

    def detach(self) -> None:
        """Leaves the job and gives its memory back: views stay valid, their contents do not.

        Doing it again changes nothing.
        """
        if self._forget():
            self._channel.call("job.detach", "{}", timeout=_QUICK_S, idempotent=False, session=True)

    def abandon(self) -> None:
        """`detach` for a caller in a hurry (Ctrl-C, a daemon that does not answer): said, but hardly waited for."""
        with contextlib.suppress(GradsyncError):
            if self._forget():
                self._channel.post("job.detach", "{}", PATIENCE_S)

    # for Grads

    def step_call(self, method: str, params: str, timeout: float | None, *, first: bool) -> Any:
        """One request of a step; its timer is 5 s longer than the daemon's deadline."""
        self._check_attached()
        deadlines = self._channel.deadlines
        limit = timeout if timeout is not None else deadlines.first_step_s if first else deadlines.step_s
        return self._channel.call(
            method, params, timeout=limit, idempotent=True, session=True, extend=self._somebody_paused
        )

    def advance(self, epoch: int | None, attempt: int, *, next_step: int | None = None) -> None:
        """Takes over the fence for the next step call."""
        if epoch is not None:
            self.epoch = epoch
        self.attempt = attempt
        if next_step is not None:
            self.last_step, self.next_step = next_step - 1, next_step

    # inside

    def _forget(self) -> bool:
        """Whether the daemon has to be told."""
        if self._detached:
            return False
        self._detached = True
        if self._grads is not None:
            self._grads.retire()
            self._grads = None
        self.client._forget(self)
        return not self._channel.session_lost

    def _check_attached(self) -> None:
        if self._detached:
            raise UsageError(f"rank {self.rank} of job '{self.name}' is detached; attach again")

    def _allocate(self, size_bytes: int) -> tuple[int, Arena]:
        grant = self._channel.call(
            "buffers.allocate",
            dump({"bytes": size_bytes, "device": "cpu"}),
            timeout=_QUICK_S,
            idempotent=False,
            session=True,
        )
        buffer: int = grant["buffer"]
        try:
            return buffer, map_arena(fetch_fd(self._channel.fd_socket_path, grant["token"], _QUICK_S), grant["bytes"])
        except BaseException:
            self._release(buffer)
            raise

    def _release(self, buffer: int) -> None:
        # What cannot be released now goes with the session.
        with contextlib.suppress(GradsyncError):
            self._channel.post("buffers.release", dump({"buffer": buffer}), PATIENCE_S)

    def _declare_pages(self, buffer: int, options: str, wires: Sequence[str], timeout: float | None) -> dict[str, Any]:
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
            fields.append(f'"tensors":[{",".join(page)}]')
            reply = self._channel.call(
                "gradients.declare",
                "{" + ",".join(fields) + "}",
                timeout=limit if last else _QUICK_S,
                idempotent=False,
                session=True,
                extend=self._somebody_paused if last else None,
            )
        return reply

    def _somebody_paused(self) -> bool:
        # A paused rank stops the daemon's deadline, so that of the client has to wait with it.
        status = self._channel.call("status.get", "{}", timeout=_QUICK_S, idempotent=True)
        return any(rank["paused"] for job in status["jobs"] if job["job"] == self.name for rank in job["ranks"])

    def __repr__(self) -> str:
        return f"Job({self.name!r}, rank={self.rank}, world_size={self.world_size}, epoch={self.epoch})"


def _check_names(tensors: Sequence[Tensor]) -> None:
    seen: set[str] = set()
    for tensor in tensors:
        if tensor.name in seen:
            raise UsageError(f"tensor '{tensor.name}' is declared twice on this rank; names are unique")
        seen.add(tensor.name)


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
