"""`init`, which declares the gradients that a framework reduces, and torch's functions over all ranks."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import torch
from torch import nn

import gradsync
from gradsync._injected import _hooks
from gradsync._launch._resolve import Launch, resolve_launch
from gradsync._options import check_divergence
from gradsync._wire_errors import local_error
from gradsync.errors import NotAttached, UsageError
from gradsync.trackers._report_log import LogTo, ReportLog, check_log_to

from .._audit import _recorder as audit_recorder
from .._audit._model import Declaration
from .._clipping import check_clip, obeyed_by_caller, watching
from .._errors import ModeNotAvailable
from .._joining import JoinOptions, attach_to, joined
from .._mesh_axes import job_meshes
from .._model_parts import pipeline_axis, tied_ids, trainable_parameters
from .._observed._watcher import of_command
from .._placed import Experts, Placer, Rule, Sharded, in_list
from .._statistics._fingerprints import FINGERPRINT
from .._weights import check_weights_every
from . import _framework
from ._deferral import Defer, check_defer
from ._observer import Observer, say_health
from ._options import InitOptions
from ._session import Session

if TYPE_CHECKING:
    from torch.amp.grad_scaler import GradScaler
    from torch.distributed.device_mesh import DeviceMesh
    from torch.optim import Optimizer

    from .._mesh_axes import MeshSpec

__all__ = [
    "clip_grad_norm_",
    "clip_grads_with_norm_",
    "close",
    "get_total_norm",
    "init",
    "last_report",
    "observe",
    "verify_weights",
]

_MODES = ("off", "observe", "clip")
_OBSERVE_S = 30.0
_current: Session | Observer | _framework.Off | None = None
_log = logging.getLogger("gradsync")


def init(
    model_parts: nn.Module | Sequence[nn.Module],
    mesh: MeshSpec | Mapping[str, MeshSpec] | None = None,
    *,
    pp: str | DeviceMesh | None = None,
    ep: Experts | Sequence[Experts] = (),
    sharded: Sharded | Sequence[Sharded] = (),
    tied: Iterable[Sequence[str]] = (),
    layer: Callable[[str], str | None] | None = None,
    clip: gradsync.Clip | None = None,
    mode: str | None = None,
    norm_type: float = 2.0,
    check_weights: bool = True,
    job: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    client: gradsync.Client | None = None,
    address: str | None = None,
    divergence: Literal["report", "raise"] = "report",
    weights_every: int = 1000,
    timeout: float | None = None,
    defer: Defer = False,
    log_to: LogTo = None,
) -> Session | Observer | _framework.Off:
    """Declares the gradients of a model that FSDP2, TP, DDP or a like framework reduces. Collective.

    From then on `clip_grad_norm_`, `get_total_norm` and `clip_grads_with_norm_` of this module are torch's, exact over
    every parallel axis.

    Args:
        model_parts: the modules that this rank holds: the model, or the stages of a pipeline; an empty list is legal.
        mesh: over all ranks: a DeviceMesh or axes and sizes; several by name, that of most parameters first. Default:
            one axis `dp`. Placements of DTensors are read; along axes that a parameter's mesh lacks it is replicated.
        pp: the axis whose coordinates hold different stages, by name or as its one-dimensional mesh; default "pp".
        ep: parameters that differ along an expert axis without being DTensors on it.
        sharded: parameters that the script cuts by hand, without DTensors.
        tied: names of parameters that share one weight across stages; counted once.
        layer: name of a parameter → its layer in the report.
        clip: the policy, what becomes of a step whose norm is not finite or a spike, and policies that watch. The
            `max_norm` of each call takes the place of its own. In mode "observe" it only says what it would do.
        mode: "clip"; "observe" where the functions are the framework's own and gradsync measures beside them, never
            raises and changes nothing; "off". Default `$GRADSYNC_MODE`, else "clip" (under `gradsync audit` and
            `gradsync observe` "observe").
        check_weights: compare what should be replicas now, which finds tensors that only share their name.
        job, rank, world_size: default from the process group, else from the launcher; the ranks agree on a name.
        client, address: a connection to share, or where to connect; default `gradsync.connect()`'s search.
        divergence: of gradients or weights that must be equal and are not: "raise" raises `GradientsDiverged` or
            `WeightsDiverged` on every rank, before anything is multiplied. Mode "observe" reports gradients alone.
        weights_every: mode "clip": steps in which all weights are compared once, a tenth at a time, also after
            checked steps (three at the beginning, a third each); 0, or without `check_weights`: never.
        timeout: seconds to wait for the other ranks' declaration.
        defer: mode "clip" on a GPU: clip_grad_norm_() enqueues and returns, and the stream waits for the coefficient; a
            step that fails leaves zeros, and the next call raises `DeferredClipFailed` (docs/clipping.md, "Deferred
            clips"). No device was measured yet, so True is refused on every GPU; "unmeasured" tries it.
        log_to: "mlflow", "tensorboard", "wandb", a path ending in .jsonl, a tracker of your own, or a list of them:
            rank 0 logs the norm, the threshold and whether it clipped, every 50 steps (docs/trackers.md). `log_to` of
            what this returns has more options.

    Raises:
        UsageError: `clip` may skip steps, and here the caller steps the optimizer; with mode "observe", more policies
            would watch than can; something needs the host to know what `defer` leaves to the stream.
        ModuleRefused: a parameter is placed in a way that has no exact norm; says why and what to do.
        WeightsDiverged: what is declared as replicas is not equal.
        RpcError: the declaration is refused, or ranks differ; names the tensor, the field and both values.
        ConnectionFailed: no daemon.
    """
    global _current
    close()
    wanted = _wanted_mode(mode)
    if wanted == "off":
        _current = _framework.Off()
        return _current
    check_clip(clip)
    check_divergence(divergence)
    check_weights_every(weights_every)
    check_log_to(log_to)
    check_defer(defer, wanted, clip, divergence, weights_every if check_weights else 0)
    options = InitOptions(
        mesh=mesh,
        join=JoinOptions(job, rank, world_size, client, address),
        pp=pp,
        ep=ep,
        sharded=sharded,
        tied=tied,
        layer=layer,
        clip=clip,
        norm_type=float(norm_type),
        check_weights=check_weights,
        divergence=divergence,
        weights_every=weights_every,
        timeout=timeout,
        defer=defer,
        log_to=log_to,
    )
    _current = _observe(model_parts, options) if wanted == "observe" else _clip(model_parts, options)
    return _current


def close() -> None:
    """Leaves the job of the last `init`; doing it again changes nothing."""
    global _current
    previous, _current = _current, None
    if previous is not None:
        previous.close()


def last_report() -> gradsync.StepReport | None:
    """The report of the last step: the norm, what was not finite, differed between replicas, or was missing.

    In mode `observe` also the framework's own norm (`theirs`) and its `relative_difference`. With `defer` this waits.

    Raises:
        DeferredClipFailed: with `defer`, the last step failed.
    """
    return None if _current is None else _current.report


def verify_weights(timeout: float | None = None) -> None:
    """Mode `clip`: compares the weights of all ranks now, as before a checkpoint is written. Collective.

    Modes `observe` and `off`: nothing.

    Raises:
        NotAttached: `init` did not come first.
        WeightsDiverged: weights that must be equal differ; names the first tensor and its ranks.
        RpcError: they could not be compared, in `timeout` seconds for instance.
    """
    session = _session()
    if isinstance(session, Session):
        session.verify_weights(timeout)


def observe(norm: torch.Tensor | float | None = None) -> None:
    """Mode `observe`: measures the gradients as they are now, beside the framework's own `norm` of them.

    For scripts that clip by functions of their own: every rank calls it once per step, before the gradients are
    multiplied. `last_report()` has the newest result. Mode `off`: nothing.

    Raises:
        NotAttached: `init` did not come first.
        UsageError: the mode is `clip`, where this module's functions clip.
    """
    session = _session()
    if isinstance(session, Observer):
        audit_recorder.observed(norm)
        session.observe(norm)
    elif isinstance(session, Session):
        raise UsageError("observe() in mode clip: call clip_grad_norm_() of this module, or set GRADSYNC_MODE=observe")


def clip_grad_norm_(
    parameters: torch.Tensor | Iterable[torch.Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
    pp_mesh: DeviceMesh | None = None,
    ep_enabled: bool = False,
    *,
    scaler: GradScaler | None = None,
    optimizers: Optimizer | Sequence[Optimizer] | None = None,
) -> torch.Tensor:
    """`torch.nn.utils.clip_grad_norm_` of the whole model: every element once, everything held is multiplied.

    `pp_mesh` and `ep_enabled` are torchtitan's; what they ask for is in the plan already. Every rank calls it, also one
    without gradients or parameters.

    After `scaler.unscale_(optimizer)` give both: where a gradient is not finite on one rank, `scaler.step(optimizer)`
    then skips on all.

    Raises:
        NotAttached: `init` did not come first.
        GradientRefused: a gradient is not reduced, or not placed like its parameter.
        UsageError: the parameters are not those of `init`, or an optimizer was not unscaled.
        RuntimeError: `error_if_nonfinite`, and the norm is NaN or infinite; gradients are unchanged.
    """
    given = (parameters, max_norm, norm_type, error_if_nonfinite, foreach)
    session = _session()
    if isinstance(session, Session):
        titan = pp_mesh is not None or ep_enabled
        return session.clip_grad_norm_(*given, scaler=scaler, optimizers=optimizers, plain=titan)
    measured = isinstance(session, Observer) and session.measure()
    norm = _framework.clip_grad_norm_(*given, pp_mesh, ep_enabled)
    if isinstance(session, Observer):
        session.finish(measured, norm, norm_type)
    return norm


def get_total_norm(
    tensors: torch.Tensor | Iterable[torch.Tensor],
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> torch.Tensor:
    """`torch.nn.utils.get_total_norm` of the whole model, given all gradients that this rank holds.

    Raises:
        NotAttached: `init` did not come first.
        UsageError: the gradients are not those of all parameters of `init`.
    """
    session = _session()
    if not isinstance(session, Session):
        norm = _framework.get_total_norm(tensors, norm_type, error_if_nonfinite, foreach)
        if isinstance(session, Observer):
            session.finish(session.measure(), norm, norm_type)
        return norm
    return session.get_total_norm(tensors, norm_type, error_if_nonfinite, foreach)


def clip_grads_with_norm_(
    parameters: torch.Tensor | Iterable[torch.Tensor],
    max_norm: float,
    total_norm: torch.Tensor,
    foreach: bool | None = None,
) -> None:
    """`torch.nn.utils.clip_grads_with_norm_` with the norm that `get_total_norm` returned in this step.

    Raises:
        NotAttached: `init` did not come first.
        UsageError: the norm is another one.
    """
    session = _session()
    if not isinstance(session, Session):
        _framework.clip_grads_with_norm_(parameters, max_norm, total_norm, foreach)
    else:
        session.clip_grads_with_norm_(parameters, max_norm, total_norm, foreach)


def _session() -> Session | Observer | _framework.Off:
    if _current is None:
        raise local_error(
            NotAttached,
            "gradsync.torch: no model is known here",
            "call gradsync.torch.init(model, mesh=…) on every rank before the first step",
        )
    return _current


def _wanted_mode(mode: str | None) -> str:
    usual = "observe" if _hooks.options() is not None else "clip"
    wanted = mode if mode is not None else os.environ.get("GRADSYNC_MODE", usual)
    if wanted in _MODES:
        return wanted
    where = "mode" if mode is not None else "GRADSYNC_MODE"
    if wanted == "sync":
        raise ModeNotAvailable(
            f"{where}=sync: gradients of init() are reduced by their framework; set it to clip, or attach() the plain "
            "module"
        )
    raise UsageError(f"{where}={wanted!r} is not a mode; set it to {' or '.join(_MODES)}")


def _clip(model_parts: nn.Module | Sequence[nn.Module], options: InitOptions) -> Session:
    watcher = of_command()
    if watcher is not None:
        watcher.stand_aside(
            "gradsync.torch.init clips here (mode clip), so there is no other norm to observe beside it"
        )
    launch, declared = _declaration(model_parts, options, options.timeout)
    settings = obeyed_by_caller(options.clip)
    log = ReportLog(launch.rank, options.log_to)
    with joined(options.join, launch, declared.meshes) as (job, owned):
        given = (declared.tensors, declared.parameters, options.norm_type, settings, owned, options.timeout)
        every = options.weights_every if options.check_weights else 0
        return Session(job, *given, divergence=options.divergence, weights_every=every, defer=options.defer, log=log)


def _observe(model_parts: nn.Module | Sequence[nn.Module], options: InitOptions) -> Observer | _framework.Off:
    watched = watching(options.clip)
    within = _OBSERVE_S if options.timeout is None else options.timeout
    try:
        launch, declared = _declaration(model_parts, options, within)
    except Exception as error:
        _log.warning("gradsync observe: nothing is observed: %s", error)
        return _framework.Off()
    audit_recorder.declared(declared)
    watcher = of_command()
    norm_type = options.norm_type

    def declare(answered: Callable[[], None]) -> tuple[gradsync.ReducedGrads, Callable[[], None]]:
        connection, owned = options.join.connect()
        answered()
        job = attach_to(connection, launch, declared.meshes)
        grads = job.declare(
            declared.tensors,
            data_path="stats",
            norm_type=norm_type,
            clip=watched,
            formula="torch",
            fingerprint=FINGERPRINT,
            timeout=within,
        )
        leaving = contextlib.ExitStack()
        leaving.callback(job.detach if owned is None else owned.close)
        if launch.rank == 0:
            # A connection of its own: on that of the steps, a thread would wake up for every result.
            listener = gradsync.connect(connection.address)
            leaving.callback(listener.abandon)
            listener.subscribe(["alert"], say_health, job=job.name)
        return grads, leaving.close

    given = (declare, declared.tensors, declared.parameters, norm_type, within, launch.rank)
    log = ReportLog(launch.rank, options.log_to)
    if watcher is None:
        return Observer(*given, log=log)
    observer = Observer(*given, **watcher.reports(), log=log)
    watcher.adopt(observer, len(declared.tensors))
    return observer


def _declaration(
    model_parts: nn.Module | Sequence[nn.Module], options: InitOptions, within: float | None
) -> tuple[Launch, Declaration]:
    join = options.join
    launch = resolve_launch(join.job, join.rank, join.world_size, None, timeout=within)
    meshes = job_meshes(options.mesh, launch.rank, launch.world_size)
    named = trainable_parameters(model_parts)
    rules: list[Rule] = [*in_list(options.ep), *in_list(options.sharded)]
    pp = pipeline_axis(options.pp, meshes[0])
    placer = Placer(meshes, pp, rules, tied_ids(options.tied), options.check_weights)
    placer.check(named)
    layers = [options.layer(name) if options.layer else None for name in named]
    return launch, Declaration(meshes, list(named.values()), placer.place_all(named, layers))
