"""`gradsync.torch.audit`: the audit as one line of a script, which also describes the model."""

from __future__ import annotations

import atexit
import datetime
import itertools
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch import nn

from gradsync._injected import _hooks
from gradsync._launch._resolve import rank_and_world
from gradsync.errors import UsageError

from .._mesh_axes import job_meshes
from .._model_parts import pipeline_axis, trainable_parameters
from .._placed import Experts, Sharded, in_list
from . import _recorder as audit_recorder
from ._model import Declaration, Hints, declare

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    MeshSpec = DeviceMesh | Mapping[str, int]

__all__ = ["Audit", "audit"]

_AGREE_S = 60.0
_log = logging.getLogger("gradsync")
_numbers = itertools.count()


def audit(
    model_parts: nn.Module | Sequence[nn.Module],
    mesh: MeshSpec | Mapping[str, MeshSpec] | None = None,
    *,
    pp: str | DeviceMesh | None = None,
    ep: Experts | Sequence[Experts] = (),
    sharded: Sharded | Sequence[Sharded] = (),
    tied: Iterable[Sequence[str]] = (),
    steps: int = 5,
    tolerance: float | None = None,
    json: str | os.PathLike[str] | None = None,
    address: str | None = None,
) -> Audit:
    """Compares the norm that this script clips by with the exact one, for some steps; the verdict is printed at exit.

    One line after the model is made and the process group is there, on every rank. It never raises, adds no collective
    and changes no gradient. Under `gradsync audit` it only says what the model is, and the command prints the verdict.

    Args:
        model_parts, mesh, pp, ep, sharded, tied: as for `init`.
        steps: how many steps are compared; after them torch's functions are restored.
        tolerance: the relative difference that is allowed; the default follows from dtype and sizes.
        json: the file that rank 0 writes the verdict to.
        address: the daemon that computes the exact norm; by default the one that is found, else a private one.
    """
    try:
        rank, world_size = rank_and_world()
        meshes = job_meshes(mesh, rank, world_size)
        axis = pipeline_axis(pp, meshes[0])
        hints = Hints(pp=axis, experts=in_list(ep), sharded=in_list(sharded), tied=list(tied))
        declaration = declare(trainable_parameters(model_parts), meshes, hints)
        return _begin(declaration, steps, _verdict_options(tolerance, json, address), rank, world_size)
    except Exception as error:
        _log.warning("gradsync audit: this rank is not audited: %s", error)
        return Audit(None, None, ())


class Audit:
    """What `audit` returns. It ends by `close()` or at exit; rank 0 then has the exit code of `gradsync audit`."""

    def __init__(self, recorder: audit_recorder.Recorder | None, folder: Path | None, options: Sequence[str]) -> None:
        self._recorder, self._folder, self._options = recorder, folder, options
        self._pid = os.getpid()
        self.exit_code: int | None = None
        if recorder is not None:
            atexit.register(self.close)

    def close(self) -> None:
        """Ends the audit; rank 0 waits for all ranks and prints the verdict."""
        if self._recorder is None or os.getpid() != self._pid:
            return
        recorder, self._recorder = self._recorder, None
        atexit.unregister(self.close)
        recorder.close()
        if self._folder is None:
            return
        # The verdict runs in a process of its own, because no thread may be started at exit.
        command = [sys.executable, "-m", "gradsync", "verdict", "--wait", f"{_AGREE_S:g}", *self._options]
        try:
            self.exit_code = subprocess.run([*command, str(self._folder)], check=False).returncode
        except (OSError, RuntimeError) as error:
            _log.warning("gradsync audit: no verdict: %s; %s %s gives it", error, " ".join(command), self._folder)
            return
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Audit:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _begin(declaration: Declaration, steps: int, options: Sequence[str], rank: int, world_size: int) -> Audit:
    if _hooks.options("audit") is not None:
        audit_recorder.declared(declaration)
        return Audit(None, None, ())
    if steps < 1:
        raise UsageError(f"audit(steps={steps}): 1 or more")
    folder = _common_folder(rank, world_size)
    recorder = audit_recorder.begin(folder, steps, Hints())
    audit_recorder.declared(declaration)
    _hooks.wrap_now()
    return Audit(recorder, folder if rank == 0 else None, options)


def _common_folder(rank: int, world_size: int) -> Path:
    """Rank 0 makes the folder; the others read its name from the process group's store, without a collective."""
    if world_size == 1:
        return Path(tempfile.mkdtemp(prefix="gradsync-audit-"))
    if not (dist.is_available() and dist.is_initialized()):
        raise UsageError("audit() of several ranks comes after torch.distributed.init_process_group")
    store: Any = dist.distributed_c10d._get_default_store()
    key = f"gradsync/audit/{next(_numbers)}"
    if rank == 0:
        folder = tempfile.mkdtemp(prefix="gradsync-audit-")
        store.set(key, folder)
        return Path(folder)
    store.wait([key], datetime.timedelta(seconds=_AGREE_S))
    return Path(store.get(key).decode())


def _verdict_options(tolerance: float | None, json: str | os.PathLike[str] | None, address: str | None) -> list[str]:
    given = {"--tolerance": tolerance, "--json": None if json is None else os.fspath(json), "--address": address}
    return [text for option, value in given.items() if value is not None for text in (option, str(value))]
