"""How a rank joins its job: the options that `attach` and `init` share, and leaving again where something fails."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import gradsync
from gradsync._launch._resolve import Launch
from gradsync.errors import CallTimeout, GradsyncError

from ._mesh_axes import JobMesh

__all__ = ["JoinOptions", "attach_to", "joined"]


@dataclass(frozen=True, slots=True)
class JoinOptions:
    """Which rank of which job this is, and by which connection it joins; None leaves it to the defaults."""

    job: str | None
    rank: int | None
    world_size: int | None
    client: gradsync.Client | None
    address: str | None

    def connect(self) -> tuple[gradsync.Client, gradsync.Client | None]:
        """The connection, and once more if it is ours to close."""
        if self.client is not None:
            return self.client, None
        owned = gradsync.connect(self.address)
        return owned, owned


@contextlib.contextmanager
def joined(
    options: JoinOptions, launch: Launch, meshes: Sequence[JobMesh]
) -> Iterator[tuple[gradsync.Job, gradsync.Client | None]]:
    """The job, and the connection if it is ours to close. Where the block raises, the rank leaves the job again."""
    connection, owned = options.connect()
    with contextlib.ExitStack() as undo:
        if owned is not None:
            undo.push(owned)
        job = attach_to(connection, launch, meshes)
        undo.push(lambda kind, error, trace: _leave(job, error))
        yield job, owned
        undo.pop_all()


def attach_to(client: gradsync.Client, launch: Launch, meshes: Sequence[JobMesh]) -> gradsync.Job:
    axes = {one.name: one.axes for one in meshes}
    return client.attach(
        job=launch.job,
        rank=launch.rank,
        world_size=launch.world_size,
        meshes=axes,
        local_world_size=launch.local_world_size,
        coordinator=launch.coordinator,
    )


def _leave(job: gradsync.Job, error: BaseException | None) -> None:
    with contextlib.suppress(GradsyncError):  # The caller sees `error`, not this one.
        if isinstance(error, (KeyboardInterrupt, CallTimeout)):
            job.abandon()
        else:
            job.detach()
