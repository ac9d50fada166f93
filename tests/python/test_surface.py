"""The public surface: what is exported, and with which signatures."""

from __future__ import annotations

import inspect
import pkgutil

import gradsync
import gradsync.trackers

EXPORTED = """
    UNSET AutoClip Bucket Buffer Client Clip ClipRaised Divergence Fixed GpuProbe GradientsDiverged Grads GradsyncError
    GroupReport Job LayerReport Mesh Missing Nonfinite NonfiniteInput Observe Only Partial PartialTo Percentile Policy
    ReducedGrads RemoteDaemon Replicate Row ScalarCollective Shard StepRaised StepReport StepTimings Subscription Tensor
    Unset UsageError WatchReport ZScore __version__ alloc_grad_buffer connect errors write_declaration
"""
SIGNATURES = {
    gradsync.alloc_grad_buffer: "(nbytes, device='cuda')",
    gradsync.connect: "(address=None, *, spawn=False, timeout=10.0)",
    gradsync.Client.attach: (
        "(self, job=None, rank=None, world_size=None, meshes=None, restart_count=None, *, local_world_size=None, "
        "coordinator=None, timeout=30.0)"
    ),
    gradsync.Client.call: "(self, method, params=None, timeout=30.0)",
    gradsync.Client.probe_gpu: "(self, device='cuda', memory=None, *, timeout=60.0)",
    gradsync.Client.stats: "(self, job=None, last=1)",
    gradsync.Client.subscribe: "(self, topics, callback, *, job=None)",
    gradsync.RemoteDaemon: "(address, *, token_file=None, ca_file=None, timeout=30.0)",
    gradsync.RemoteDaemon.call: "(self, method, params=None)",
    gradsync.RemoteDaemon.stats: "(self, job, last=1)",
    gradsync.Job.declare: (
        "(self, tensors, *, data_path='arena', accumulate=1, norm_type=2.0, clip=None, formula='strict', "
        "buckets='default', divergence='report', fingerprint='', measured_by='', partial_sums='exact', device='cpu', "
        "memory=None, timeout=None)"
    ),
    gradsync.Clip.percentile: (
        "(ceiling=1.0, percentile=95.0, window=1000, warmup=100, *, nonfinite='propagate', spike='clip', "
        "spike_factor=3.0, watch=())"
    ),
    gradsync.Clip.zscore: (
        "(ceiling=1.0, z=2.5, alpha=0.97, warmup=25, *, nonfinite='propagate', spike='clip', spike_factor=3.0, "
        "watch=())"
    ),
    gradsync.Clip.observe: "(*watch, ceiling=1.0, nonfinite='propagate')",
    gradsync.Clip.from_config: "(config)",
    gradsync.ReducedGrads.finish: (
        "(self, step=None, scale=None, max_norm=<Unset.UNSET: 'unset'>, timeout=None, scaled=None)"
    ),
    gradsync.ReducedGrads.state_dict: "(self)",
    gradsync.ReducedGrads.load_state_dict: "(self, state, timeout=None)",
    gradsync.Grads.ready: "(self, name, micro_batch=None)",
    gradsync.Grads.finish: (
        "(self, step=None, scale=None, max_norm=<Unset.UNSET: 'unset'>, timeout=None, *, ready=None, "
        "unused=(), bucket_digests=None, scaled=None, micro_batch=None)"
    ),
    gradsync.Grads.apply_clip: "(self, max_norm=<Unset.UNSET: 'unset'>, timeout=None)",
    gradsync.Grads.abandon: "(self, timeout=None)",
}


def bare(function: object) -> str:
    signature = inspect.signature(function)  # type: ignore[arg-type]
    parameters = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty))


def test_exactly_these_names_are_exported() -> None:
    assert sorted(gradsync.__all__) == sorted(EXPORTED.split())
    assert sorted(gradsync.trackers.__all__) == ["JsonlTracker", "Logger", "Tracker", "measurements"]
    for name in gradsync.__all__:
        assert getattr(gradsync, name) is not None


def test_signatures_stay() -> None:
    assert {function.__qualname__: bare(function) for function in SIGNATURES} == {
        function.__qualname__: text for function, text in SIGNATURES.items()
    }


def test_every_module_but_the_public_ones_is_private() -> None:
    public = {name for _, name, _ in pkgutil.iter_modules(gradsync.__path__) if not name.startswith("_")}
    assert public <= {"errors", "integrations", "trackers", "torch"}


def test_everything_public_is_documented() -> None:
    for name in gradsync.__all__:
        member = getattr(gradsync, name)
        if not inspect.isclass(member):
            continue
        assert member.__doc__, name
        for attribute, value in vars(member).items():
            if not attribute.startswith("_") and callable(value):
                assert value.__doc__, f"{name}.{attribute}"
