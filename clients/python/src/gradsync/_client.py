"""connect() and the client: one connection to a daemon, shared by everything in the process that uses it."""

from __future__ import annotations

import contextlib
import logging
import os
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ._gpu._probe import GpuProbe, probe_gpu
from ._job import Job
from ._launch._address import candidates
from ._launch._connect_errors import not_found
from ._launch._resolve import resolve_launch
from ._launch._spawn import PrivateDaemon
from ._session._rank_session import RankSession
from ._step._grads import Grads
from ._step._report import StepReport, decode_report
from ._tensor import Mesh
from ._transport._channel import Channel
from ._wire import plain
from .errors import CallTimeout, ConnectionFailed, GradsyncError, UsageError

if TYPE_CHECKING:
    import torch

__all__ = ["Client", "Subscription", "connect"]

_log = logging.getLogger("gradsync")

_FIRST_DELAY_S, _LONGEST_DELAY_S = 0.02, 0.5
_QUICK_S = 30.0
_EXPLAIN_PAGE = 200
_PROBE_S = 60.0  # a worker is started, and has 20 s to map memory


def connect(address: str | os.PathLike[str] | None = None, *, spawn: bool = False, timeout: float = 10.0) -> Client:
    """Connects to `address`, else $GRADSYNC_ADDRESS, else the first of the usual places where a daemon listens.

    It waits for a daemon at an address that was given, and for one whose socket file is still there, because it may be
    starting, or being replaced. `spawn` starts a private daemon instead, which ends with the client.

    Args:
        timeout: seconds, for all of it.

    Raises:
        ConnectionFailed: no usable daemon; `reason` and text say which way and what to do.
        UsageError: the address names no unix socket.
    """
    if spawn:
        if address is not None:
            raise UsageError("connect(spawn=True) makes its own address; leave one of the two out")
        daemon = PrivateDaemon(timeout)
        try:
            return Client(RankSession(candidates(daemon.address)[0], timeout), daemon)
        except BaseException:
            daemon.stop()
            raise
    return _connect(candidates(address), address is not None or bool(os.environ.get("GRADSYNC_ADDRESS")), timeout)


def _connect(paths: list[str], named: bool, timeout: float) -> Client:
    """Connects to the first path at which a daemon listens; a daemon at a named path may still be starting."""
    deadline = time.monotonic() + timeout
    delay = _FIRST_DELAY_S
    while True:
        try:
            return _connect_once(paths, deadline)
        except ConnectionFailed as error:
            comes = error.reason in ("stale", "ending") or (named and error.reason == "not_found")
            if not comes or time.monotonic() + delay > deadline:
                raise
            if delay == _FIRST_DELAY_S:
                _log.info("waiting %g s for a daemon at %s", timeout, error.path)
        time.sleep(delay)
        delay = min(2 * delay, _LONGEST_DELAY_S)


def _connect_once(paths: list[str], deadline: float) -> Client:
    first: ConnectionFailed | None = None
    for path in paths:
        try:
            return Client(RankSession(path, max(0.05, deadline - time.monotonic())))
        except ConnectionFailed as error:
            # What is stale or a stranger's must not hide a daemon further on; a live one that refuses ends the search.
            if error.reason not in ("not_found", "stale", "unsafe"):
                raise
            if error.reason != "not_found" and first is None:
                first = error
    raise first or not_found(paths)


class Subscription:
    """Pushes until `cancel()`; also a context manager."""

    def __init__(self, channel: Channel, key: int) -> None:
        self._channel = channel
        self._key = key

    def cancel(self) -> None:
        """Ends the pushes; doing it again changes nothing."""
        self._channel.unsubscribe(self._key, _QUICK_S)

    def __enter__(self) -> Subscription:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()


class Client:
    """A connection to a daemon; made by `connect`, ended by `close` or the end of a `with`."""

    def __init__(self, session: RankSession, daemon: PrivateDaemon | None = None) -> None:
        self._session = session
        self._channel = session.channel
        self._daemon = daemon
        self._job: Job | None = None
        # Runs at close, when the client is dropped, and at exit.
        self._finalizer = weakref.finalize(self, _end, session, daemon)

    @property
    def address(self) -> str:
        """Path of the daemon's socket."""
        return self._channel.path

    @property
    def server(self) -> dict[str, Any]:
        """Name, version and pid of the daemon."""
        return dict(self._session.welcome.server)

    @property
    def job(self) -> Job | None:
        """The rank attached through this client, if any."""
        return self._job

    def attach(
        self,
        job: str | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        meshes: Mapping[str, Mapping[str, int] | Mesh] | None = None,
        restart_count: int | None = None,
        *,
        local_world_size: int | None = None,
        coordinator: str | None = None,
        timeout: float = 30.0,
    ) -> Job:
        """Takes a rank of a job; what is not given comes from torch's process group, else from the launcher.

        Launchers are torchrun, Open MPI and Slurm; a process of which nobody says anything is the only one. `meshes`
        defaults to `{"default": {"dp": world_size}}`, the job name to one like `train.py@host-3f2a`, which the ranks
        agree on.

        Where the launcher says that this node has fewer ranks than the job, the daemons of its nodes work together
        (`[peer]` in their configuration). `local_world_size` is the number of ranks that share this daemon, by default
        $LOCAL_WORLD_SIZE, else what the launcher says, else all. Where several launchers run on one node, each of them
        counts only its own ranks: unset LOCAL_WORLD_SIZE in the ranks, or pass the sum. `coordinator` is HOST or
        HOST:PORT of the daemon of rank 0, by default $GRADSYNC_COORDINATOR, else $MASTER_ADDR; it is not looked for
        where all ranks are on one node, and all ranks of a node have to say the same. The host in a name that is made
        up is then $MASTER_ADDR, or the word `nodes` where nobody says it, so that all nodes have the same name.

        Raises:
            UsageError: nobody says which rank of which job this is, or two contradict each other.
            RpcError: the daemon refused it (`RankInUse`, `JobMismatch`, `NoPeers`, …).
        """
        if self._job is not None:
            raise UsageError(f"this client holds {self._job!r}; detach() it first, or connect() once more")
        launch = resolve_launch(
            job,
            rank,
            world_size,
            restart_count,
            local_world_size=local_world_size,
            coordinator=coordinator,
            timeout=timeout,
        )
        given = {"default": {"dp": launch.world_size}} if meshes is None else meshes
        named = {name: mesh if isinstance(mesh, Mesh) else Mesh(mesh) for name, mesh in given.items()}
        params: dict[str, Any] = {
            "job": launch.job,
            "rank": launch.rank,
            "world_size": launch.world_size,
            "meshes": [mesh.encode(name) for name, mesh in named.items()],
            "restart_count": launch.restart_count,
        }
        if launch.local_world_size < launch.world_size:
            params["local_world_size"] = launch.local_world_size
            if launch.coordinator is not None:
                params["coordinator"] = launch.coordinator
        reply = self._session.attach(params, timeout)
        self._job = Job(self, launch.job, launch.rank, launch.world_size, named, reply)
        return self._job

    def call(self, method: str, params: Mapping[str, Any] | None = None, timeout: float = _QUICK_S) -> Any:
        """Any method of the protocol, by name.

        Raises:
            RpcError: the daemon answered with an error.
        """
        return self._channel.call(method, plain(dict(params or {})), timeout=timeout, idempotent=False, whole=True)

    def probe_gpu(
        self, device: Any = "cuda", memory: torch.Tensor | None = None, *, timeout: float = _PROBE_S
    ) -> GpuProbe:
        """Has the daemon's worker of a GPU map memory of this process, to see whether gradients could lie there.

        Nothing is declared, and no rank is needed. 64 bytes of `memory`, a tensor on a GPU (default: new memory of
        `device`), are read and written by both sides, which shows that it is the same memory; then they are what they
        were. After a CallTimeout the worker may still write them.

        Raises:
            UsageError: `memory` is no tensor that can be shared, or `device` names no GPU.
            NoGpu: this process, or the daemon, sees no such GPU.
            ImportRefused: CUDA does not share it, or the worker cannot map it; the message says what to do.
        """
        return probe_gpu(lambda method, params: self.call(method, params, timeout), device, memory)

    def status(self) -> dict[str, Any]:
        """The daemon's status: the daemon itself and this user's jobs."""
        result: dict[str, Any] = self._read("status.get", {})
        return result

    def stats(self, job: str | None = None, last: int = 1) -> list[StepReport]:
        """The last reports of a job (default: the attached one), oldest first."""
        reply = self._read("stats.get", {"job": self._job_name(job), "last": last})
        return [decode_report(wire, self._tensor_name) for wire in reply["reports"]]

    def explain(self, job: str | None = None) -> dict[str, Any]:
        """The plan of a job (default: the attached one), all pages together."""
        name = self._job_name(job)
        whole: dict[str, Any] = {}
        while not whole or len(whole["tensors"]) < whole["total"]:
            offset = len(whole["tensors"]) if whole else 0
            page = self._read("plan.explain", {"job": name, "offset": offset, "limit": _EXPLAIN_PAGE})
            if not whole:
                whole = page
            elif page["digest"] != whole["digest"]:
                whole = {}  # the rank declared again between two pages
            elif page["tensors"]:
                whole["tensors"] += page["tensors"]
            else:
                break
        return whole

    def subscribe(
        self, topics: Iterable[str], callback: Callable[[dict[str, Any]], None], *, job: str | None = None
    ) -> Subscription:
        """Calls `callback` with the params of every push of the topics "step", "alert", "epoch".

        It runs on the reader thread: it has to be quick and must not call the client.
        """
        params: dict[str, Any] = {"topics": list(topics)}
        if job is not None:
            params["job"] = job
        return Subscription(self._channel, self._channel.subscribe(params, callback, _QUICK_S))

    def close(self) -> None:
        """Leaves the job and ends the connection, and the private daemon with it. Doing it again changes nothing."""
        if self._job is not None and not self._channel.closed:
            with contextlib.suppress(GradsyncError):
                self._job.detach()
        self._job = None
        self._finalizer()

    def abandon(self) -> None:
        """`close` for a caller in a hurry (Ctrl-C, a daemon that does not answer): it does not wait."""
        if self._job is not None:
            self._job.abandon()
        self._job = None
        if self._finalizer.detach() is not None:
            _end(self._session, self._daemon, brief=True)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, (KeyboardInterrupt, CallTimeout)):
            self.abandon()
        else:
            self.close()

    def _read(self, method: str, params: Mapping[str, Any]) -> Any:
        return self._channel.call(method, params, timeout=_QUICK_S, idempotent=True)

    def _job_name(self, job: str | None) -> str:
        if job is not None:
            return job
        if self._job is None:
            raise UsageError("no job is attached through this client; name one: job=…")
        return self._job.name

    def _tensor_name(self, index: int) -> str:
        grads = self._job.grads if self._job is not None else None
        if isinstance(grads, Grads) and index < len(grads.tensors):
            return grads.tensors[index].name
        return f"#{index}"

    def _forget(self, job: Job) -> None:
        if self._job is job:
            self._job = None
            self._session.forget()

    def __repr__(self) -> str:
        return f"Client({self.address!r}{', closed' if self._channel.closed else ''})"


def _end(session: RankSession, daemon: PrivateDaemon | None, *, brief: bool = False) -> None:
    session.close(brief=brief)
    if daemon is not None:
        daemon.stop(brief=brief)
