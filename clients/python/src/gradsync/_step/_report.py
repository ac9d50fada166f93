"""The result of a step, as values. Field names are wire names."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from gradsync._wire import decode_int, decode_number
from gradsync.errors import ProtocolError

__all__ = [
    "Divergence",
    "GroupReport",
    "LayerReport",
    "Missing",
    "Nonfinite",
    "NonfiniteInput",
    "ScalarCollective",
    "StepReport",
    "StepTimings",
    "WatchReport",
    "decode_fence",
    "decode_report",
    "findings_in",
    "read_report",
    "relative_difference",
]


Action = Literal["step", "zero", "skip", "raise"]
Finding = Literal["nonfinite", "divergence", "missing", "absent", "spike"]  #: what a watcher is told of


class _Shown:
    """Shows every field, and an infinite threshold in words."""

    __slots__ = ()

    def __repr__(self) -> str:
        shown = (f"{name}={_shown(name, getattr(self, name))}" for name in self.__dataclass_fields__)  # type: ignore[attr-defined]
        return f"{type(self).__name__}({', '.join(shown)})"


def _shown(name: str, value: object) -> str:
    return "no threshold" if name == "threshold" and value == math.inf else repr(value)


@dataclass(frozen=True, slots=True, repr=False)
class WatchReport(_Shown):
    """What a policy that only watches would have done with the norm of its clip group."""

    policy: str  #: in words
    threshold: float
    coefficient: float
    clipped: bool
    action: Action
    spike: bool
    reason: str


@dataclass(frozen=True, slots=True, repr=False)
class GroupReport(_Shown):
    """One clip group."""

    name: str
    norm: float
    threshold: float  #: infinite where nothing is clipped by it
    coefficient: float
    clipped: bool
    reason: str
    action: Action = "step"  #: "zero": its gradients became 0
    spike: bool = False  #: the norm is far above the policy's own threshold
    watch: tuple[WatchReport, ...] = ()  #: in the order of the declaration


@dataclass(frozen=True, slots=True)
class LayerReport:
    """The norm of one layer."""

    name: str
    norm: float


@dataclass(frozen=True, slots=True)
class NonfiniteInput:
    """What one rank contributed before the reduction.

    A gradient is the sum over the micro-batches of a step, so the values came in `micro_batch` or in an earlier one.
    """

    rank: int
    count: int
    micro_batch: int | None = None  #: that completed the tensor's bucket on that rank; None: the rank did not say

    def __str__(self) -> str:
        when = "" if self.micro_batch is None else f" (complete in micro-batch {self.micro_batch})"
        return f"rank {self.rank}{when}"


@dataclass(frozen=True, slots=True)
class Nonfinite:
    """A tensor with NaN or infinity in its result; no inputs: it arose in the sum."""

    tensor: str
    count: int
    inputs: tuple[NonfiniteInput, ...]

    def __str__(self) -> str:
        where = f" of {', '.join(map(str, self.inputs))}" if self.inputs else " (arose in the sum)"
        return f"'{self.tensor}'{where}"


@dataclass(frozen=True, slots=True)
class Divergence:
    """A tensor whose copies must be equal and are not."""

    tensor: str
    ranks: tuple[int, ...]  #: those whose bits differ from those of the lowest rank that holds the same part
    majority: tuple[int, ...] = ()  #: those with the bits that more than half of the copies have
    suspects: tuple[int, ...] = ()  #: the others; all that were compared where there is no majority, as of two
    what: Literal["gradients", "weights"] = "gradients"  #: weights are compared by `gradsync.torch` alone

    def __str__(self) -> str:
        if self.suspects and not self.majority:
            return f"'{self.tensor}' between {_ranks(self.suspects)}"
        equal = f" (equal on {_ranks(self.majority)})" if self.majority else ""
        return f"'{self.tensor}' on {_ranks(self.suspects or self.ranks)}{equal}"


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


@dataclass(frozen=True, slots=True)
class Missing:
    """A tensor that others have a gradient of, and these ranks none.

    On data path "stats" these ranks hold it, and their zero is counted. On data path "arena" they are those of whole
    reduction groups in which no rank had one, while another group had; they got zeros. A rank without one in a group
    where another has one is not named: the sum takes it for zero. In plain data parallelism there is one group, so
    nothing is ever missing.
    """

    tensor: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ScalarCollective:
    """One sum of packed numbers over the ranks along these axes: what the norm needs between nodes."""

    mesh: str
    axes: tuple[str, ...]
    length: int


@dataclass(frozen=True, slots=True)
class StepTimings:
    """Seconds, measured by the daemon."""

    wait_s: float
    reduce_s: float
    norm_s: float
    clip_s: float
    total_s: float


class _WhenRead:
    """A report in its wire form: the first read of a field that is not set decodes all of them.

    Python asks `__getattr__` for a slot that is empty, so equality, repr, pickle and `replace` need to know nothing.
    """

    __slots__ = ("_wire",)

    if not TYPE_CHECKING:  # a field that does not exist stays an error of the type checker

        def __getattr__(self, name: str) -> Any:
            if name == "_wire" or name not in _FIELDS or not hasattr(self, "_wire"):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
            wire = self._wire
            if wire is None:  # another thread has decoded it meanwhile
                return object.__getattribute__(self, name)
            decoded = decode_report(wire, str)
            for field in _FIELDS:
                _set(self, field, getattr(decoded, field))
            _set(self, "_wire", None)
            return getattr(decoded, name)


@dataclass(frozen=True, slots=True, repr=False)
class StepReport(_WhenRead, _Shown):
    """The result of a step, equal on all ranks but for `absent` and the last five fields.

    Those are of `gradsync.torch` about this rank's step; 0 or None without it, and in reports read from the daemon.
    """

    step: int
    epoch: int
    attempt: int
    next_attempt: int
    norm: float  #: before clipping
    threshold: float
    coefficient: float
    clipped: bool
    skipped: bool  #: nothing was multiplied, and no optimizer may step
    reason: str
    found_inf: bool
    groups: tuple[GroupReport, ...]
    layers: tuple[LayerReport, ...]
    nonfinite: tuple[Nonfinite, ...]
    divergence: tuple[Divergence, ...]
    absent: tuple[str, ...]  #: tensors without a gradient on any rank; on data path "arena" of those declared here
    stable_buckets: tuple[int, ...]
    counted_elements: int
    collectives: int
    data_path: str  #: how gradients reached the sidecar: "arena"; "off" where GRADSYNC_MODE=off
    policy_digest: str
    timings: StepTimings
    missing: tuple[Missing, ...] = ()  #: never in plain data parallelism of data path "arena": see `Missing`
    scalar_collectives: tuple[ScalarCollective, ...] = ()  #: data path "stats"
    check_next: bool = False  #: data path "stats": the next step's rows should carry fingerprints
    action: Action = "step"  #: the strongest of the clip groups' actions "step", "skip" and "raise"
    decided_by: str = ""  #: the clip group whose norm skips or raises the step; empty: none does
    copied_gradients: int = 0  #: moved into the arena by a hook; one per parameter that was used is normal
    settled_gradients: int = 0  #: moved there by step(): create_graph, a gradient set by hand, a replaced parameter
    rebound_gradients: int = 0  #: `p.grad` was another tensor over the arena's own memory
    theirs: float | None = None  #: mode observe: the framework's own norm, where it was given
    measured_by: str = ""  #: data path "stats": what took this rank's statistics, as it was declared
    partial_sums: str = "exact"  #: how what nodes add travels between them, as it was declared

    @property
    def relative_difference(self) -> float | None:
        """How far the framework's norm is from `norm`; None where either is missing or not finite, or `norm` is 0."""
        return relative_difference(self.theirs, self.norm)


def relative_difference(theirs: float | None, norm: float) -> float | None:
    """How far `theirs` is from `norm`; None where either is missing or not finite, or `norm` is 0."""
    if theirs is None or not math.isfinite(theirs) or not math.isfinite(norm) or norm == 0:
        return None
    return theirs / norm - 1


_FIELDS = StepReport.__slots__
_set = object.__setattr__  # as a frozen dataclass does it


def read_report(wire: Mapping[str, Any], tensor_name: Callable[[int], str]) -> StepReport:
    """Decodes only the fields that a training loop reads in every step; the first read of another decodes the rest.

    Raises:
        ProtocolError: one of the former is missing or of the wrong type; for the others, reading them does.
    """
    try:
        norm, coefficient = decode_number(wire["norm"]), decode_number(wire["coefficient"])
        found_inf, skipped, clipped = wire["found_inf"], wire["skipped"], wire["clipped"]
        action = wire.get("action", "step")  # what came later is not sent by every daemon
        if wire["absent"]:  # the names now: a report outlives what was declared
            names = [*map(tensor_name, wire["absent"]), *wire.get("absent_names", ())]
            wire = {**wire, "absent": (), "absent_names": names}
    except (KeyError, TypeError, IndexError) as error:
        raise _unreadable(error) from error
    report = StepReport.__new__(StepReport)
    _set(report, "_wire", wire)
    _set(report, "norm", norm)
    _set(report, "coefficient", coefficient)
    _set(report, "found_inf", found_inf)
    _set(report, "skipped", skipped)
    _set(report, "clipped", clipped)
    _set(report, "action", action)
    return report


def decode_report(wire: Mapping[str, Any], tensor_name: Callable[[int], str]) -> StepReport:
    """A report from its wire form; unknown fields of a newer daemon are ignored.

    Raises:
        ProtocolError: a field is missing or of the wrong type.
    """
    try:
        timings = wire["timings"]
        return StepReport(
            step=decode_int(wire["step"]),
            epoch=decode_int(wire["epoch"]),
            attempt=decode_int(wire["attempt"]),
            next_attempt=decode_int(wire["next_attempt"]),
            norm=decode_number(wire["norm"]),
            threshold=decode_number(wire["threshold"]),
            coefficient=decode_number(wire["coefficient"]),
            clipped=wire["clipped"],
            skipped=wire["skipped"],
            reason=wire["reason"],
            found_inf=wire["found_inf"],
            groups=tuple(_group(group) for group in wire["groups"]),
            layers=tuple(LayerReport(layer["name"], decode_number(layer["norm"])) for layer in wire["layers"]),
            nonfinite=tuple(_nonfinite(item) for item in wire["nonfinite"]),
            divergence=tuple(_divergence(item) for item in wire["divergence"]),
            absent=(*(tensor_name(index) for index in wire["absent"]), *wire.get("absent_names", ())),
            stable_buckets=tuple(wire["stable_buckets"]),
            counted_elements=decode_int(wire["counted_elements"]),
            collectives=decode_int(wire["collectives"]),
            data_path=wire["data_path"],
            policy_digest=wire["policy_digest"],
            timings=StepTimings(*(decode_number(timings[name]) for name in StepTimings.__slots__)),
            missing=tuple(Missing(item["tensor"], tuple(item["ranks"])) for item in wire.get("missing", ())),
            scalar_collectives=tuple(
                ScalarCollective(item["mesh"], tuple(item["axes"]), decode_int(item["length"]))
                for item in wire.get("scalar_collectives", ())
            ),
            check_next=bool(wire.get("check_next", False)),
            action=wire.get("action", "step"),
            decided_by=wire.get("decided_by", ""),
            measured_by=wire.get("measured_by", ""),
            partial_sums=wire.get("partial_sums", "exact"),
        )
    except (KeyError, TypeError, IndexError) as error:
        raise _unreadable(error) from error


def findings_in(wire: Mapping[str, Any]) -> tuple[float, list[Finding]]:
    """The norm, and which findings a report has; nearly always none, so nothing is decoded for it.

    Raises:
        ProtocolError: a field that was looked at is missing or of the wrong type.
    """
    try:
        norm = decode_number(wire["norm"])
        found: list[Finding] = []
        if wire["found_inf"] or wire["nonfinite"] or not math.isfinite(norm):
            found.append("nonfinite")
        if wire["divergence"]:
            found.append("divergence")
        if wire.get("missing"):
            found.append("missing")
        if wire["absent"] or wire.get("absent_names"):
            found.append("absent")
        for group in wire["groups"]:
            if group.get("spike") or any(watcher["spike"] for watcher in group.get("watch", ())):
                found.append("spike")
                break
        return norm, found
    except (KeyError, TypeError) as error:
        raise _unreadable(error) from error


def decode_fence(wire: Mapping[str, Any]) -> tuple[int, int]:
    """Epoch and attempt of the next step call, from a report that may never be decoded as a whole.

    The epoch is another than that of the report where the client has declared anew since then (`next_epoch`).

    Raises:
        ProtocolError: one is missing or of the wrong type.
    """
    try:
        return decode_int(wire.get("next_epoch", wire["epoch"])), decode_int(wire["next_attempt"])
    except (KeyError, TypeError) as error:
        raise _unreadable(error) from error


def _unreadable(error: Exception) -> ProtocolError:
    return ProtocolError(
        f"a step report of the daemon cannot be read ({error!r}); install client and daemon of the same release"
    )


def _group(wire: Mapping[str, Any]) -> GroupReport:
    return GroupReport(
        name=wire["name"],
        norm=decode_number(wire["norm"]),
        threshold=decode_number(wire["threshold"]),
        coefficient=decode_number(wire["coefficient"]),
        clipped=wire["clipped"],
        reason=wire["reason"],
        action=wire.get("action", "step"),
        spike=wire.get("spike", False),
        watch=tuple(_watch(policy) for policy in wire.get("watch", ())),
    )


def _watch(wire: Mapping[str, Any]) -> WatchReport:
    return WatchReport(
        policy=wire["policy"],
        threshold=decode_number(wire["threshold"]),
        coefficient=decode_number(wire["coefficient"]),
        clipped=wire["clipped"],
        action=wire["action"],
        spike=wire["spike"],
        reason=wire["reason"],
    )


def _divergence(wire: Mapping[str, Any]) -> Divergence:
    majority, suspects = wire.get("majority", ()), wire.get("suspects", ())  # an older daemon has `ranks` alone
    return Divergence(wire["tensor"], tuple(wire["ranks"]), tuple(majority), tuple(suspects))


def _nonfinite(wire: Mapping[str, Any]) -> Nonfinite:
    inputs = tuple(
        NonfiniteInput(item["rank"], decode_int(item["count"]), item.get("micro_batch")) for item in wire["inputs"]
    )
    return Nonfinite(wire["tensor"], decode_int(wire["count"]), inputs)
