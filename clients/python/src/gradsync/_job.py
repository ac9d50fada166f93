"""One rank of one job: declare, pause, detach. Holds what fences the steps."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from ._clip import Clip
from ._comeback import Comeback
from ._declaring import QUICK_S, Declaring
from ._grads import Grads
from ._options import encode_options
from ._output import arena_bytes
from ._record import stamp_of
from ._reduced import ReducedGrads, check_stats_arguments, table_bytes
from ._tensor import Mesh, Tensor
from ._wire import dump
from .errors import ConnectionLost, GradsyncError, UsageError

if TYPE_CHECKING:
    from ._client import Client

__all__ = ["Job"]


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
        self._buffer: tuple[int, str] | None = None  # and the daemon that has it
        self._grads: Grads | ReducedGrads | None = None
        self._detached = False
        self._last_done: tuple[int, int] | None = None  # epoch and attempt
        self._channel = client._channel
        self.seat = self._channel.seat  # the daemon that the calls of a step are for
        self._declaring = Declaring(self._channel, rank, self._somebody_paused)
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
        declaring = self._declaring
        seat = self._channel.seat
        buffer, arena = declaring.allocate(size_bytes, seat)
        try:
            reply = declaring.declare(buffer, dump(options), wires, timeout, seat, self._last_done)
            record = declaring.record(reply, seat)
        except BaseException:
            declaring.release(buffer, seat)
            raise
        self.seat = seat
        comeback = Comeback(self._channel, declaring, arena, dump(options), tensors, only_mesh, reply, record)
        grads: Grads | ReducedGrads
        if data_path == "stats":
            grads = ReducedGrads(self, tensors, arena, reply, comeback, options)
        else:
            grads = Grads(self, tensors, accumulate, arena, reply, comeback)
        self.advance(reply["epoch"], reply["attempt"])
        if self._grads is not None:
            self._grads.retire()
        if self._buffer is not None:
            declaring.release(*self._buffer)
        self._buffer, self._grads = (buffer, seat), grads
        return grads

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """While this is open (evaluation, a checkpoint) no deadline that waits for this rank runs out."""
        self._check_attached()
        self._channel.pause(True, QUICK_S)
        try:
            yield
        except BaseException:
            with contextlib.suppress(GradsyncError):  # the caller's error is the one to see
                self._channel.pause(False, None)
            raise
        self._channel.pause(False, QUICK_S)

    def detach(self) -> None:
        """Leaves the job and gives its memory back: views stay valid, their contents do not.

        Doing it again changes nothing.
        """
        if self._forget():
            with contextlib.suppress(ConnectionLost):  # who is not there any more has left
                self._channel.call("job.detach", "{}", timeout=QUICK_S, idempotent=False, session=True)

    def abandon(self) -> None:
        """`detach` for a caller in a hurry (Ctrl-C, a daemon that does not answer): said, but hardly waited for."""
        with contextlib.suppress(GradsyncError):
            if self._forget():
                self._channel.leave()

    # for what is declared

    @property
    def stamp(self) -> int:
        """The attempt as one number, never 0."""
        return stamp_of(self.epoch, self.attempt)

    def come_back(self, comeback: Comeback, timeout: float | None, *, stepped: bool) -> dict[str, Any]:
        """Declares again at the restarted daemon; its answer. `stepped`: weights are not what they were.

        Raises:
            RpcError: the declaration failed, because of another rank perhaps; it may be made again.
            ConnectionLost: the rank cannot go on.
        """
        deadlines = self._channel.deadlines
        limit = timeout if timeout is not None else deadlines.step_s if stepped else deadlines.first_step_s
        self.seat, buffer, reply = comeback.declare_again(
            with_weights=not stepped, last_done=self._last_done, timeout=limit
        )
        self._buffer = (buffer, self.seat)
        self.advance(reply["epoch"], reply["attempt"])
        return reply

    def step_call(self, method: str, params: str, timeout: float | None, *, first: bool, instead: bool = False) -> Any:
        """One request of a step; its timer is 5 s longer than the daemon's deadline.

        `instead`: it says that all buckets are ready.

        Raises:
            SessionMoved: the rank is attached to a restarted daemon now.
        """
        self._check_attached()
        deadlines = self._channel.deadlines
        limit = timeout if timeout is not None else deadlines.first_step_s if first else deadlines.step_s
        return self._channel.call(
            method,
            params,
            timeout=limit,
            idempotent=True,
            session=True,
            seat=self.seat,
            extend=self._somebody_paused,
            instead=instead,
        )

    def note_done(self, epoch: int, attempt: int) -> None:
        """An attempt of this job was done: after a restart of the daemon its policies go on from there."""
        self._last_done = (epoch, attempt)

    def advance(self, epoch: int | None, attempt: int, *, next_step: int | None = None) -> None:
        """Takes over the fence for the next step call; `next_step` once a step is done."""
        if epoch is not None:
            self.epoch = epoch
        self.attempt = attempt
        if next_step is not None:
            self._channel.step_done()
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

    def _somebody_paused(self) -> bool:
        # A paused rank stops the daemon's deadline, so that of the client has to wait with it.
        status = self._channel.call("status.get", "{}", timeout=QUICK_S, idempotent=True)
        return any(rank["paused"] for job in status["jobs"] if job["job"] == self.name for rank in job["ranks"])

    def __repr__(self) -> str:
        return f"Job({self.name!r}, rank={self.rank}, world_size={self.world_size}, epoch={self.epoch})"


def _check_names(tensors: Sequence[Tensor]) -> None:
    seen: set[str] = set()
    for tensor in tensors:
        if tensor.name in seen:
            raise UsageError(f"tensor '{tensor.name}' is declared twice on this rank; names are unique")
        seen.add(tensor.name)
