"""One rank of one job: it declares, pauses and detaches. It holds the epoch and the attempt, which fence the steps."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from ._clip import Clip
from ._gpu._arena import GpuArena
from ._options import check_divergence, encode_options
from ._renamed import renamed
from ._step._arena import Arena
from ._step._declaring import QUICK_S, Declaring
from ._step._grads import Grads
from ._step._output import arena_bytes
from ._step._reconnect import Reconnect
from ._step._record import stamp_of
from ._step._reduced import ReducedGrads, check_stats_arguments, table_bytes
from ._tensor import Mesh, Tensor
from .errors import ConnectionLost, GradsyncError, NotAttached, UsageError

if TYPE_CHECKING:
    import torch

    from ._client import Client

__all__ = ["Job"]

_log = logging.getLogger("gradsync")

_GLANCE_S = 1.0  # a daemon that is well answers sooner
_NAMED_AT_MOST = 8


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
        self._buffer: tuple[int, str] | None = None  # its number, and the daemon that has it
        self._arena: Arena | GpuArena | None = None  # held until the daemon has been told to let it go
        self._grads: Grads | ReducedGrads | None = None
        self._detached = False
        self._last_done: tuple[int, int] | None = None  # epoch and attempt
        self._session = client._session
        self._channel = client._channel
        self.seat = self._session.seat  # the daemon that the calls of a step are for
        self._declaring = Declaring(self._session, rank, self._somebody_paused, self._log_what_is_waited_for)
        self.notify = self._channel.notify  # any thread; never waits for an answer

    @property
    def grads(self) -> Grads | ReducedGrads | None:
        """The declaration in force."""
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
        formula: Literal["strict", "torch"] = "strict",
        buckets: Literal["default", "torch"] = "default",
        divergence: Literal["report", "raise"] = "report",
        partial_sums: Literal["exact", "bfloat16"] = "exact",
        device: Any = "cpu",
        memory: torch.Tensor | None = None,
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
        formula: Literal["strict", "torch"] = "strict",
        divergence: Literal["report", "raise"] = "report",
        fingerprint: str = "",
        measured_by: str = "",
        timeout: float | None = None,
    ) -> ReducedGrads: ...

    @renamed(mode="formula")
    def declare(
        self,
        tensors: Sequence[Tensor],
        *,
        data_path: Literal["arena", "stats"] = "arena",
        accumulate: int = 1,
        norm_type: float = 2.0,
        clip: Clip | Mapping[str, Clip] | None = None,
        formula: Literal["strict", "torch"] = "strict",
        buckets: Literal["default", "torch"] = "default",
        divergence: Literal["report", "raise"] = "report",
        fingerprint: str = "",
        measured_by: str = "",
        partial_sums: Literal["exact", "bfloat16"] = "exact",
        device: Any = "cpu",
        memory: torch.Tensor | None = None,
        timeout: float | None = None,
    ) -> Grads | ReducedGrads:
        """Declares this rank's gradients and waits for all ranks; a new declaration replaces the one before.

        `data_path` "arena" shares memory that the sidecar reduces; with "stats" the framework has reduced, each rank
        declares what it holds (nothing, perhaps) and hands over statistics. `buckets` "torch" reduces those tensors
        together that torch's DistributedDataParallel would, in its order, whatever sizes the daemon was given.
        `formula` is how clipping rounds: "strict" leaves unclipped gradients alone, "torch" is clip_grad_norm_.
        With `divergence` "raise" a step in which copies differ raises `GradientsDiverged` on every rank.
        Over several nodes `partial_sums` "bfloat16" has what nodes send each other to be added in half the bytes, each
        rounded to a relative 2^-8 (float64 gradients excepted); all ranks get equal bits all the same.
        With "stats", `fingerprint` names the function that makes the fingerprints of rows, which ranks have to share,
        and `measured_by` what takes this rank's statistics, which `status` and reports then say.
        `device` "cuda", "cuda:1" or a torch.device has the gradients in memory of that GPU, which the worker of the
        sidecar reduces there; `input(name).torch()` are tensors on it, and `ready` and `finish` wait for what the
        calling thread's current stream has written.
        `memory` is a contiguous tensor on a GPU that the caller allocated, by torch or by `alloc_grad_buffer`: its
        first bytes become the arena, whatever was in them, and it is held until this declaration is replaced or the
        rank has left the job. Until then nothing else may be kept in these bytes, and they may not be resized or freed
        by other means. They begin a multiple of 16 bytes into their allocation, and there are at least those that each
        tensor takes, rounded up to 64, and likewise each output of a scattered one. The handle that the worker gets
        opens the whole allocation: with torch's allocator that is a segment, with tensors beside this one.

        Raises:
            UsageError: the arguments contradict each other, or `memory` cannot be an arena.
            InsufficientMemory: the arena does not fit.
            NoGpu: this process, or the daemon, sees no such GPU.
            ImportRefused: CUDA does not share its memory, or the daemon's worker cannot map it.
            RpcError: the daemon refused it, the ranks differ, or not all declared in time.
        """
        self._check_attached()
        options = encode_options(data_path, accumulate, norm_type, clip, formula, buckets, fingerprint, partial_sums)
        check_divergence(divergence)
        only_mesh = next(iter(self.meshes)) if len(self.meshes) == 1 else None
        wires = [tensor.encode(only_mesh) for tensor in tensors]
        _check_names(tensors)
        if data_path == "stats":
            check_stats_arguments(accumulate, tensors)
        self._declaring.measured_by = measured_by
        gpu = memory is not None or str(device) != "cpu"
        if gpu and data_path == "stats":
            raise UsageError(
                "a table of statistics lies in memory of the CPU: leave device and memory out with data_path='stats'"
            )

        size_bytes = table_bytes(tensors) if data_path == "stats" else arena_bytes(tensors, self.meshes)
        on_gpu = GpuArena.of(size_bytes, device, memory) if gpu else None
        seat = self._session.seat
        new = self._declaring.share(size_bytes, options, wires, timeout, seat, self._last_done, on_gpu)
        reconnect = Reconnect(
            self._session, self._declaring, new.arena, options, tensors, only_mesh, new.reply, new.record
        )
        grads: Grads | ReducedGrads
        if data_path == "stats":
            assert isinstance(new.arena, Arena)
            grads = ReducedGrads(self, tensors, new.arena, new.reply, reconnect, options, measured_by)
        else:
            grads = Grads(self, tensors, accumulate, new.arena, new.reply, reconnect)
        grads.raises_divergence = divergence == "raise"
        self._replace(grads, new.arena, (new.buffer, seat), new.reply)
        return grads

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """While this is open (evaluation, a checkpoint) no deadline that waits for this rank runs out."""
        self._check_attached()
        self._session.pause(True, QUICK_S)
        try:
            yield
        except BaseException:
            with contextlib.suppress(GradsyncError):  # the caller's error is the one to see
                self._session.pause(False, None)
            raise
        self._session.pause(False, QUICK_S)

    def detach(self) -> None:
        """Leaves the job and gives its memory back: views stay valid, their contents do not.

        In the middle of a step, the reduction that runs may still write to memory on a GPU when this returns. Doing it
        again changes nothing.
        """
        if self._forget():
            with contextlib.suppress(ConnectionLost, NotAttached):  # a lost connection has left the job already
                self._session.detach(QUICK_S)
        self._arena = None

    def abandon(self) -> None:
        """`detach` for a caller in a hurry (Ctrl-C, a daemon that does not answer): it hardly waits for the answer."""
        if self._forget():
            self._session.leave()
        self._arena = None

    # for what is declared

    @property
    def stamp(self) -> int:
        """The attempt as one number, never 0."""
        return stamp_of(self.epoch, self.attempt)

    def fence(self) -> dict[str, Any]:
        """The epoch and the attempt, which every call of a step carries."""
        return {"epoch": self.epoch, "attempt": self.attempt}

    def come_back(self, reconnect: Reconnect, timeout: float | None, *, stepped: bool) -> dict[str, Any]:
        """Declares again at the restarted daemon and returns its answer. `stepped`: the weights have changed since.

        Raises:
            RpcError: the declaration failed, because of another rank perhaps; it may be made again.
            ConnectionLost: the rank cannot go on.
        """
        welcome = self._session.welcome
        limit = timeout if timeout is not None else welcome.step_s if stepped else welcome.first_step_s
        self.seat, buffer, reply = reconnect.declare_again(
            with_weights=not stepped, last_done=self._last_done, timeout=limit, whole=timeout is not None
        )
        self._buffer = (buffer, self.seat)
        self.advance(reply["epoch"], reply["attempt"])
        return reply

    def step_call(self, method: str, params: Mapping[str, Any], timeout: float | None, *, first: bool) -> Any:
        """One request of a step; its timer is 5 s longer than the daemon's deadline.

        Raises:
            SessionMoved: the rank is attached to a restarted daemon now.
        """
        self._check_attached()
        welcome = self._session.welcome
        limit = timeout if timeout is not None else welcome.first_step_s if first else welcome.step_s
        return self._session.call(
            method,
            params,
            timeout=limit,
            seat=self.seat,
            idempotent=True,
            extend=self._somebody_paused,
            on_slow=self._log_what_is_waited_for,
            whole=timeout is not None,
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
            self._channel.renew_patience()
            self.last_step, self.next_step = next_step - 1, next_step

    # inside

    def _replace(
        self,
        grads: Grads | ReducedGrads,
        arena: Arena | GpuArena,
        buffer: tuple[int, str],
        reply: Mapping[str, Any],
    ) -> None:
        """A new declaration takes the place of the one before, whose memory is given back."""
        self.seat = buffer[1]
        self.advance(reply["epoch"], reply["attempt"])
        if self._grads is not None:
            self._grads.retire()
        before = self._buffer
        self._buffer, self._grads = buffer, grads
        if before is not None:
            self._declaring.release(*before)
        self._arena = arena

    def _forget(self) -> bool:
        """Whether the daemon has to be told."""
        if self._detached:
            return False
        self._detached = True
        if self._grads is not None:
            self._grads.retire()
            self._grads = None
        self.client._forget(self)
        return not self._session.lost

    def _check_attached(self) -> None:
        if self._detached:
            raise UsageError(f"rank {self.rank} of job '{self.name}' is detached; attach again")

    def _somebody_paused(self) -> bool:
        # A paused rank stops the daemon's deadline, so that of the client has to wait with it.
        status = self._channel.call("status.get", {}, timeout=QUICK_S, idempotent=True)
        return any(rank["paused"] for job in status["jobs"] if job["job"] == self.name for rank in job["ranks"])

    def _log_what_is_waited_for(self, method: str) -> None:
        status = None
        with contextlib.suppress(GradsyncError):
            status = self._channel.post("status.get", {}, _GLANCE_S, idempotent=True)
        if status is None:
            _log.warning("%s of %r waits for the daemon, which does not answer status.get either", method, self)
            return
        ranks = {rank["rank"]: rank for job in status["jobs"] if job["job"] == self.name for rank in job["ranks"]}
        missing = [
            f"rank {number} ({_whereabouts(ranks.get(number))})"
            for number in range(self.world_size)
            if number not in ranks or ranks[number]["waiting_in"] != method
        ]
        _log.warning("%s of %r waits for %s", method, self, ", ".join(missing[:_NAMED_AT_MOST]) or "the daemon's work")

    def __repr__(self) -> str:
        return f"Job({self.name!r}, rank={self.rank}, world_size={self.world_size}, epoch={self.epoch})"


def _whereabouts(rank: Mapping[str, Any] | None) -> str:
    """Where a rank is that has not called, from its entry in status.get."""
    if rank is None:
        return "not attached"
    return f"pid {rank['pid']}, {'paused' if rank['paused'] else rank['waiting_in'] or rank['state']}"


def _check_names(tensors: Sequence[Tensor]) -> None:
    seen: set[str] = set()
    for tensor in tensors:
        if tensor.name in seen:
            raise UsageError(f"tensor '{tensor.name}' is declared twice on this rank; names are unique")
        seen.add(tensor.name)
