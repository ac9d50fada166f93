"""`attach` declares the gradients of a module. It is collective: every rank of the job calls it alike."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal
from weakref import WeakKeyDictionary

from torch import nn

import gradsync
from gradsync._launch._resolve import rank_and_world, resolve_launch
from gradsync._renamed import renamed
from gradsync.errors import UsageError, WeightsDiverged
from gradsync.trackers._report_log import LogTo, ReportLog

from .._clipping import adapts
from .._dtensor import local_tensor
from .._errors import ModeNotAvailable, ModuleRefused
from .._joining import JoinOptions, joined
from .._mesh_axes import JobMesh, job_meshes
from .._parameter_set import ParameterSet, collect, unsynchronised_buffers
from .._weights import WeightWatch
from . import _weights
from ._gradsync import GradSync
from ._off import OffSync
from ._options import AttachOptions
from ._placed_gradient import PlacedGradient
from ._placements import check_shardable, copied_gradients, frozen_tensors, sync_tensors, weight_tensors
from ._recorder import GradientRecorder

if TYPE_CHECKING:
    from .._mesh_axes import MeshSpec

_NAMED_AT_MOST = 10
_attached: WeakKeyDictionary[nn.Module, GradSync] = WeakKeyDictionary()
_attached_lock = threading.Lock()


@renamed(mode="formula", init="weights")
def attach(
    model: nn.Module,
    mesh: MeshSpec | Mapping[str, MeshSpec] | None = None,
    *,
    accumulate: int = 1,
    clip: gradsync.Clip | Mapping[str, gradsync.Clip] | None = None,
    formula: Literal["strict", "torch"] = "strict",
    job: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    client: gradsync.Client | None = None,
    address: str | None = None,
    weights: Literal["check", "broadcast", "skip"] = "check",
    norm_type: float = 2.0,
    reduce: Literal["mean", "sum"] = "mean",
    buckets: Literal["default", "torch"] = "default",
    partial_sums: Literal["exact", "bfloat16"] = "exact",
    clip_group: Callable[[str], str] | None = None,
    layer: Callable[[str], str | None] | None = None,
    divergence: Literal["report", "raise"] = "report",
    weights_every: int = 1000,
    overlap: bool = True,
    shard: str | None = None,
    timeout: float | None = None,
    log_to: LogTo = None,
) -> GradSync | OffSync:
    """Hands the gradients of a module to the sidecar, in the place of DistributedDataParallel.

    The module is a plain one, or made by `parallelize_module`, or by `fully_shard` over some axes: the sidecar reduces
    along the axes that these leave, once per step. It lies on the CPU or on one GPU, whose worker of the sidecar then
    reduces the gradients where they are, when backward is over.

    Args:
        mesh: over all ranks: a DeviceMesh, or axes and sizes; several by name, that of plain parameters first. Default
            one axis `dp`.
        accumulate: micro-batches in a step, at most (the loss is yours to divide). Fewer are always right; a gradient
            of one more may come too late, and is refused then (LateGradient).
        clip: of all gradients, or by clip group; None measures only.
        formula: how clipping rounds: "strict" leaves unclipped gradients alone, "torch" is clip_grad_norm_.
        job, rank, world_size: default from the process group, else from the launcher; the ranks agree on a name.
        client, address: a connection to share, or where to connect; default `gradsync.connect()`'s search.
        weights: "check" compares the ranks' weights, "broadcast" gives all ranks those of rank 0, "skip" does neither.
        reduce: over ranks that see different data.
        buckets: "torch" reduces in DistributedDataParallel's buckets.
        partial_sums: "bfloat16" halves the bytes of what nodes send each other to be added, at a relative error of 2^-8
            of each node's part; all ranks get equal bits all the same.
        clip_group, layer: name of a parameter → its clip group, its layer in the report.
        divergence: of gradients or weights that must be equal and are not: "raise" raises `GradientsDiverged` or
            `WeightsDiverged` on every rank.
        weights_every: steps in which all weights are compared once, a tenth at a time, also after checked steps (three
            at the beginning, a third each); 0, or with `weights` "skip": never.
        overlap: False reduces in `step()` alone, and nothing while backward runs: gradients may be changed in between.
        shard: of a plain module, the axis along which each rank gets its rows of the gradients alone (ZeRO-2): make the
            optimizer of `gs.parameters()`, which are this rank's rows; after its step torch gathers the parameters.
        timeout: seconds to wait for the other ranks' declaration.
        log_to: "mlflow", "tensorboard", "wandb", a path ending in .jsonl, a tracker of your own, or a list of them:
            rank 0 logs the norm, the threshold and whether it clipped, every 50 steps (docs/trackers.md). `gs.log_to`
            has more options.

    `$GRADSYNC_MODE`: `sync` (the default), or `off`, where steps are the optimizer's alone.

    Raises:
        ModuleRefused: the module or a parameter cannot be synchronised; says why and what to do.
        WeightsDiverged: ranks start from different weights; names the tensor and the ranks.
        PlanMismatch: ranks declared different parameters.
        ConnectionFailed: no daemon.
    """
    options = AttachOptions(
        mesh=mesh,
        join=JoinOptions(job, rank, world_size, client, address),
        accumulate=accumulate,
        clip=clip,
        formula=formula,
        weights=weights,
        norm_type=norm_type,
        reduce=reduce,
        buckets=buckets,
        partial_sums=partial_sums,
        clip_group=clip_group,
        layer=layer,
        divergence=divergence,
        weights_every=weights_every,
        overlap=overlap,
        shard=shard,
        timeout=timeout,
        log_to=log_to,
    )
    _check_module(model)
    if _wanted_mode() == "off":
        return OffSync(model, world_size if world_size is not None else rank_and_world()[1])
    return _attach(model, options)


def _check_module(model: object) -> None:
    if not isinstance(model, nn.Module):
        raise UsageError(
            f"attach() got {type(model).__name__}; give one nn.Module (several: in a ModuleList, or each with a job= "
            "of its own)"
        )


def _attach(model: nn.Module, options: AttachOptions) -> GradSync:
    found = collect(model)
    _close_previous(found)
    join = options.join
    launch = resolve_launch(join.job, join.rank, join.world_size, None, timeout=options.timeout)
    log = ReportLog(launch.rank, options.log_to)
    meshes = job_meshes(options.mesh, launch.rank, launch.world_size)
    if options.shard is not None:
        check_shardable(found)
    tensors = sync_tensors(found, meshes, options)
    _warn_of_buffers(model, launch.world_size)
    with joined(join, launch, meshes) as (job, owned):
        _prepare_weights(job, model, found, meshes, options)
        prints = _weights.fingerprints(found, options.weights != "skip")
        with_prints = [replace(t, weight_fingerprint=p) for t, p in zip(tensors, prints, strict=True)]
        grads = _declare(job, with_prints, options, _memory_of(found))
    copies = copied_gradients(found, meshes)
    recorder = _recorder(found, grads, options, copies)
    watch = WeightWatch(
        job,
        weight_tensors(found, meshes),
        found.parameters,
        0 if options.weights == "skip" else options.weights_every,
        options.divergence == "raise",
        copies,
    )
    shards = None
    if options.shard is not None:
        from ._sharded import Shards  # imports torch.distributed.tensor, which others do without

        shards = Shards(found, grads, options.mesh, meshes, options.shard)
    gs = GradSync(found, recorder, job, grads, owned, watch, log, shards, adapts=adapts(options.clip))
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


def _warn_of_buffers(model: nn.Module, world_size: int) -> None:
    names = unsynchronised_buffers(model) if world_size > 1 else []
    if names:
        more = f" and {len(names) - _NAMED_AT_MOST} more" if len(names) > _NAMED_AT_MOST else ""
        warnings.warn(
            f"module buffers are not synchronised between ranks: {', '.join(names[:_NAMED_AT_MOST])}{more}; "
            "for batch statistics use SyncBatchNorm or another norm, and save them from one rank",
            stacklevel=5,
        )


def _prepare_weights(
    job: gradsync.Job, model: nn.Module, found: ParameterSet, meshes: Sequence[JobMesh], options: AttachOptions
) -> None:
    first_step = job.next_step
    if options.weights == "broadcast":
        _weights.broadcast(job, model, meshes[0].name, list(meshes[0].axes), options.timeout)
    elif options.weights == "check" and found.frozen:
        job.declare(frozen_tensors(found, meshes), timeout=options.timeout)
    job.next_step = first_step  # Training counts its own steps.


def _memory_of(found: ParameterSet) -> str:
    """The device that gets the gradients."""
    return str(found.device)


def _declare(
    job: gradsync.Job, tensors: Sequence[gradsync.Tensor], options: AttachOptions, device: str
) -> gradsync.Grads:
    try:
        return job.declare(
            tensors,
            accumulate=options.accumulate,
            norm_type=options.norm_type,
            clip=options.clip,
            formula=options.formula,
            buckets=options.buckets,
            partial_sums=options.partial_sums,
            divergence=options.divergence,
            device=device,
            timeout=options.timeout,
        )
    except WeightsDiverged as error:
        if options.weights != "skip":
            raise
        # Without weights in the fingerprint only the layout is left to differ.
        raise ModuleRefused(
            error.tensor or "?",
            f"its memory layout differs between ranks ({error.message})",
            "use the same memory_format on every rank",
        ) from error


def _recorder(
    found: ParameterSet, grads: gradsync.Grads, options: AttachOptions, copied: Collection[int]
) -> GradientRecorder:
    views = [
        grads.input(name).torch().reshape(-1).as_strided(local_tensor(parameter).shape, strides)
        for name, parameter, strides in zip(found.names, found.parameters, found.strides, strict=True)
    ]
    placed = {i: PlacedGradient(found.parameters[i], views[i], i in found.managed) for i in sorted(found.placed)}
    return GradientRecorder(found, views, placed, grads, options.accumulate, copied=copied, overlap=options.overlap)
