"""`attach`: from a module to declared gradients. Collective: every rank of the job calls it alike."""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import nn

import gradsync
from gradsync._launch import resolve_launch
from gradsync.errors import CallTimeout, UsageError, WeightsDiverged

from . import _weights
from ._errors import ModeNotAvailable, ModuleRefused
from ._gradsync import GradSync
from ._off import OffSync
from ._parameter_set import WIRE_DTYPES, ParameterSet, collect, unsynchronised_buffers
from ._recorder import GradientRecorder

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_MESH = "data"
_MODEL_AXES = ("tp", "pp", "ep")
_NAMED_AT_MOST = 10
_attached: WeakKeyDictionary[nn.Module, GradSync] = WeakKeyDictionary()
_attached_lock = threading.Lock()


def attach(
    model: nn.Module,
    mesh: Mapping[str, int] | DeviceMesh | None = None,
    *,
    accumulate: int = 1,
    clip: gradsync.Clip | Mapping[str, gradsync.Clip] | None = None,
    mode: Literal["strict", "torch"] = "strict",
    job: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    client: gradsync.Client | None = None,
    address: str | None = None,
    init: Literal["check", "broadcast", "skip"] = "check",
    norm_type: float = 2.0,
    reduce: Literal["mean", "sum"] = "mean",
    clip_group: Callable[[str], str] | None = None,
    layer: Callable[[str], str | None] | None = None,
    timeout: float | None = None,
) -> GradSync | OffSync:
    """Hands the gradients of a plain module to the sidecar; this replaces DistributedDataParallel.

    Args:
        mesh: axes of data parallelism and their sizes; default one axis `dp` over all ranks.
        accumulate: micro-batches in a step (the loss is yours to divide). A hint for overlap, never for correctness.
        clip: of all gradients, or by clip group; None measures only.
        mode: how clipping rounds: "strict" leaves unclipped gradients alone, "torch" is clip_grad_norm_.
        job, rank, world_size: default from torchrun's environment.
        client, address: a connection to share, or where to connect; default `gradsync.connect()`'s search.
        init: "check" compares the ranks' weights, "broadcast" gives all ranks those of rank 0, "skip" does neither.
        clip_group, layer: name of a parameter → its clip group, its layer in the report.
        timeout: seconds to wait for the other ranks' declaration.

    `$GRADSYNC_MODE`: `sync` (the default), or `off`, where steps are the optimizer's alone.

    Raises:
        ModuleRefused: the module or a parameter cannot be synchronised; says why and what to do.
        WeightsDiverged: ranks start from different weights; names the tensor and the ranks.
        PlanMismatch: ranks declared different parameters.
        ConnectionFailed: no daemon.
    """
    if init not in ("check", "broadcast", "skip"):
        raise UsageError(f"init={init!r}: one of 'check', 'broadcast', 'skip'")
    if reduce not in ("mean", "sum"):
        raise UsageError(f"reduce={reduce!r}: one of 'mean', 'sum'")
    if not isinstance(model, nn.Module):
        raise UsageError(f"attach() got {type(model).__name__}; give one nn.Module (wrap several in a ModuleList)")
    if _wanted_mode() == "off":
        return OffSync(model, world_size if world_size is not None else int(os.environ.get("WORLD_SIZE", "1")))
    found = collect(model)
    _close_previous(found)
    launch = resolve_launch(job, rank, world_size, None)
    axes = _axes(mesh, launch.world_size)
    _warn_of_buffers(model, launch.world_size)

    owned = gradsync.connect(address) if client is None else None
    session = client if owned is None else owned
    assert session is not None
    with contextlib.ExitStack() as undo:
        if owned is not None:
            undo.push(owned)
        attached = session.attach(job=launch.job, rank=launch.rank, world_size=launch.world_size, meshes={_MESH: axes})
        undo.push(lambda kind, error, trace: _leave(attached, error))
        _prepare_weights(attached, model, found, axes, init, timeout)
        grads = _declare(
            attached,
            _tensors(found, axes, init, reduce, clip_group, layer),
            init,
            accumulate=accumulate,
            norm_type=norm_type,
            clip=clip,
            mode=mode,
            timeout=timeout,
        )
        undo.pop_all()
    recorder = GradientRecorder(
        found,
        _views(found, grads),
        [bucket.tensors for bucket in grads.buckets],
        accumulate,
        grads.ready_bucket,
    )
    gs = GradSync(found, recorder, attached, grads, owned)
    with _attached_lock:
        _attached[model] = gs
    return gs


def _close_previous(found: ParameterSet) -> None:
    # A notebook cell run again, perhaps with a new wrapper (torch.compile) around the same parameters: a gradient has
    # one place in one arena.
    wanted = set(map(id, found.parameters))
    with _attached_lock:
        previous = [gs for gs in _attached.values() if gs.synchronises_any(wanted)]
    for gs in previous:
        gs.close()


def _wanted_mode() -> str:
    wanted = os.environ.get("GRADSYNC_MODE", "sync")
    if wanted in ("sync", "off"):
        return wanted
    if wanted in ("observe", "clip"):
        raise ModeNotAvailable(
            f"GRADSYNC_MODE={wanted}: attach() lets the sidecar reduce; for gradients that a framework reduces "
            "call gradsync.torch.init() instead, or set it to sync or off"
        )
    raise UsageError(f"GRADSYNC_MODE={wanted!r} is not a mode; set it to sync or off")


def _axes(mesh: Mapping[str, int] | DeviceMesh | None, world_size: int) -> dict[str, int]:
    if mesh is None:
        return {"dp": world_size}
    if isinstance(mesh, Mapping):
        axes = {str(axis): int(size) for axis, size in mesh.items()}
    else:
        ranks = mesh.mesh
        if ranks.flatten().tolist() != list(range(world_size)):
            raise UsageError(
                f"mesh: it holds ranks {ranks.flatten().tolist()[:8]}…, not 0…{world_size - 1} in order; "
                "give a mesh over all ranks in row-major order, or a dict of axis sizes"
            )
        names = mesh.mesh_dim_names or ("dp",)
        if len(names) != ranks.ndim:
            raise UsageError("mesh: its dimensions have no names; pass mesh_dim_names to init_device_mesh")
        axes = dict(zip(names, ranks.shape, strict=True))
    for axis in _MODEL_AXES:
        if axes.get(axis, 1) > 1:
            raise UsageError(
                f"mesh: axis '{axis}' splits the model, and a plain module is whole on every rank; "
                "give data-parallel axes only, or declare the tensors by client.attach(…).declare(…)"
            )
    return axes


def _warn_of_buffers(model: nn.Module, world_size: int) -> None:
    names = unsynchronised_buffers(model) if world_size > 1 else []
    if names:
        more = f" and {len(names) - _NAMED_AT_MOST} more" if len(names) > _NAMED_AT_MOST else ""
        warnings.warn(
            f"module buffers are not synchronised between ranks: {', '.join(names[:_NAMED_AT_MOST])}{more}; "
            "for batch statistics use SyncBatchNorm or another norm, and save them from one rank",
            stacklevel=3,
        )


def _prepare_weights(
    job: gradsync.Job, model: nn.Module, found: ParameterSet, axes: Mapping[str, int], init: str, timeout: float | None
) -> None:
    first_step = job.next_step
    if init == "broadcast":
        _weights.broadcast(job, model, _MESH, list(axes), timeout)
    elif init == "check" and found.frozen:
        _weights.check_frozen(job, found, _MESH, list(axes), timeout)
    job.next_step = first_step  # training counts its own steps


def _tensors(
    found: ParameterSet,
    axes: Mapping[str, int],
    init: str,
    reduce: Literal["mean", "sum"],
    clip_group: Callable[[str], str] | None,
    layer: Callable[[str], str | None] | None,
) -> list[gradsync.Tensor]:
    fingerprints = _weights.fingerprints(found, init != "skip")
    return [
        gradsync.Tensor(
            name,
            tuple(parameter.shape),
            dtype=WIRE_DTYPES[dtype],
            mesh=_MESH,
            placements={axis: gradsync.Partial(reduce) >> gradsync.Replicate() for axis in axes},
            clip_group=clip_group(name) if clip_group is not None else "all",
            layer=layer(name) if layer is not None else None,
            weight_fingerprint=fingerprint,
        )
        for name, parameter, dtype, fingerprint in zip(
            found.names, found.parameters, found.dtypes, fingerprints, strict=True
        )
    ]


def _declare(job: gradsync.Job, tensors: list[gradsync.Tensor], init: str, **options: Any) -> gradsync.Grads:
    try:
        grads: gradsync.Grads = job.declare(tensors, **options)
    except WeightsDiverged as error:
        if init != "skip":
            raise
        # Without weights in the fingerprint only the layout is left to differ.
        raise ModuleRefused(
            error.tensor or "?",
            f"its memory layout differs between ranks ({error.message})",
            "use the same memory_format on every rank",
        ) from error
    return grads


def _leave(job: gradsync.Job, error: BaseException | None) -> None:
    if isinstance(error, (KeyboardInterrupt, CallTimeout)):
        job.abandon()
    else:
        job.detach()


def _views(found: ParameterSet, grads: gradsync.Grads) -> list[torch.Tensor]:
    return [
        grads.input(name).torch().reshape(-1).as_strided(parameter.shape, strides)
        for name, parameter, strides in zip(found.names, found.parameters, found.strides, strict=True)
    ]
