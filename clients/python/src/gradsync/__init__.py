"""Client of gradsyncd: gradient sync, exact norms and clipping by a node-local sidecar.

Importing this needs neither torch nor numpy; `gradsync.torch` is the adapter for PyTorch.
"""

from . import errors
from ._client import Client, Subscription, connect
from ._clip import Clip
from ._declaration_file import write_declaration
from ._gpu._memory import alloc_grad_buffer
from ._gpu._probe import GpuProbe
from ._job import Job
from ._placements import Only, Partial, PartialTo, Replicate, Shard
from ._policies import AutoClip, Fixed, Observe, Percentile, Policy, ZScore
from ._remote import RemoteDaemon
from ._step._buffer import Buffer
from ._step._grads import Grads
from ._step._layout import Bucket
from ._step._reduced import ReducedGrads
from ._step._report import (
    Divergence,
    GroupReport,
    LayerReport,
    Missing,
    Nonfinite,
    NonfiniteInput,
    ScalarCollective,
    StepReport,
    StepTimings,
    WatchReport,
)
from ._step._row import Row
from ._step._step_request import UNSET, Unset
from ._tensor import Mesh, Tensor
from ._version import __version__
from .errors import ClipRaised, GradientsDiverged, GradsyncError, StepRaised, UsageError

__all__ = [
    "UNSET",
    "AutoClip",
    "Bucket",
    "Buffer",
    "Client",
    "Clip",
    "ClipRaised",
    "Divergence",
    "Fixed",
    "GpuProbe",
    "GradientsDiverged",
    "Grads",
    "GradsyncError",
    "GroupReport",
    "Job",
    "LayerReport",
    "Mesh",
    "Missing",
    "Nonfinite",
    "NonfiniteInput",
    "Observe",
    "Only",
    "Partial",
    "PartialTo",
    "Percentile",
    "Policy",
    "ReducedGrads",
    "RemoteDaemon",
    "Replicate",
    "Row",
    "ScalarCollective",
    "Shard",
    "StepRaised",
    "StepReport",
    "StepTimings",
    "Subscription",
    "Tensor",
    "Unset",
    "UsageError",
    "WatchReport",
    "ZScore",
    "__version__",
    "alloc_grad_buffer",
    "connect",
    "errors",
    "write_declaration",
]
