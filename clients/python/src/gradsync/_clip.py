"""How one clip group is clipped, as a rank declares it: a frozen value, checked when made."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ._policies import AutoClip, Fixed, Observe, Percentile, Policy, ZScore, require_number
from ._wire import encode_number
from .errors import UsageError

__all__ = ["MOST_WATCHING", "Clip"]

_FIXED = Fixed()
MOST_WATCHING = 8
_ZERO_RULES = ("refuse", "off", "zero")
_NONFINITE = ("propagate", "skip", "zero", "raise")
_SPIKE = ("clip", "skip", "raise")

NonfiniteAction = Literal["propagate", "skip", "zero", "raise"]
SpikeAction = Literal["clip", "skip", "raise"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """How one clip group is clipped; with policy `Fixed` and `max_norm=None` its norm is only measured.

    `zero_rule` says what `max_norm=0` means: refuse, off (do not clip) or zero (zero the gradients). For an adaptive
    policy `max_norm` is the ceiling; None sets no ceiling. `nonfinite` and `spike` say what becomes of a step whose
    norm is not finite, or above `spike_factor` times the policy's own threshold: "skip" steps no optimizer, "zero"
    steps it with zeros, "raise" raises `ClipRaised` on every rank. Policies in `watch` clip nothing; they report what
    they would have done.

    Raises:
        UsageError: a field has a value that it cannot have.
    """

    max_norm: float | None = None
    zero_rule: Literal["refuse", "off", "zero"] = "refuse"
    policy: Policy = _FIXED
    nonfinite: NonfiniteAction = "propagate"
    spike: SpikeAction = "clip"
    spike_factor: float = 3.0
    watch: tuple[Policy, ...] = ()

    def __post_init__(self) -> None:
        if self.max_norm is not None and not 0 <= require_number("Clip", "max_norm", self.max_norm) < math.inf:
            raise UsageError(
                f"Clip(max_norm={self.max_norm!r}): give a finite number of 0 or more, or None to measure only"
            )
        _require_one_of("zero_rule", self.zero_rule, _ZERO_RULES)
        _require_policy("policy", self.policy)
        _require_one_of("nonfinite", self.nonfinite, _NONFINITE)
        _require_one_of("spike", self.spike, _SPIKE)
        if not 1 < require_number("Clip", "spike_factor", self.spike_factor) < math.inf:
            raise UsageError(f"Clip(spike_factor={self.spike_factor!r}): give a finite number above 1")
        if isinstance(self.watch, Policy) or not isinstance(self.watch, Sequence):
            raise UsageError(f"Clip(watch={self.watch!r}): give a list of policies")
        object.__setattr__(self, "watch", tuple(self.watch))
        if len(self.watch) > MOST_WATCHING:
            raise UsageError(
                f"Clip(watch=…): {len(self.watch)} policies, at most {MOST_WATCHING} may watch; try the others on a "
                "recorded run: gradsyncd policy replay"
            )
        for number, policy in enumerate(self.watch):
            _require_policy(f"watch[{number}]", policy)

    @classmethod
    def percentile(
        cls,
        ceiling: float | None = 1.0,
        percentile: float = 95.0,
        window: int = 1000,
        warmup: int = 100,
        *,
        nonfinite: NonfiniteAction = "propagate",
        spike: SpikeAction = "clip",
        spike_factor: float = 3.0,
        watch: Sequence[Policy] = (),
    ) -> Clip:
        """Clips at a percentile of the last norms, never above `ceiling`."""
        policy = Percentile(percentile=percentile, window=window, warmup=warmup)
        return cls._adaptive(ceiling, policy, nonfinite, spike, spike_factor, watch)

    @classmethod
    def auto(cls, ceiling: float | None = 1.0, percentile: float = 95.0, window: int = 1000, warmup: int = 100) -> Clip:
        """Auto gradient clipping to the letter, as many training scripts have it; `percentile()` is the better one.

        The threshold is min(ceiling, percentile of the last norms), by `numpy.percentile` and Python's `min`, from
        `warmup` norms on. Every norm is remembered, also one that is not finite or of a step that was skipped; a
        percentile of 0 counts, and makes gradients 0; gradients are multiplied as `clip_grad_norm_` does it, by
        threshold / (norm + 1e-6): its formula is "torch". docs/clipping.md has the differences.
        """
        return cls(
            max_norm=ceiling,
            zero_rule="zero",
            policy=AutoClip(percentile=percentile, window=window, warmup=warmup),
        )

    @classmethod
    def zscore(
        cls,
        ceiling: float | None = 1.0,
        z: float = 2.5,
        alpha: float = 0.97,
        warmup: int = 25,
        *,
        nonfinite: NonfiniteAction = "propagate",
        spike: SpikeAction = "clip",
        spike_factor: float = 3.0,
        watch: Sequence[Policy] = (),
    ) -> Clip:
        """Clips norms far above the moving mean, harder the further they are above it, and never above `ceiling`."""
        policy = ZScore(z=z, alpha=alpha, warmup=warmup)
        return cls._adaptive(ceiling, policy, nonfinite, spike, spike_factor, watch)

    @classmethod
    def observe(cls, *watch: Policy, ceiling: float | None = 1.0, nonfinite: NonfiniteAction = "propagate") -> Clip:
        """Clips nothing; the policies in `watch` report what they would have done with this ceiling."""
        return cls(max_norm=ceiling, policy=Observe(), nonfinite=nonfinite, watch=watch)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Clip:
        """Reads the keys of gradient clipping from a training configuration, as TOML or YAML gave it.

        `auto_grad_clip` (true) clips at the `grad_clip_percentile` (95) of the last norms, never above `grad_clip_norm`
        (1.0); false clips at `grad_clip_norm`. Other keys are ignored.

        Raises:
            UsageError: a key has a value that it cannot have, or an unknown key begins like one of these.
        """
        if not isinstance(config, Mapping):
            raise UsageError(f"Clip.from_config({config!r}): give the table that has {next(iter(_CONFIG))}")
        values = {**_CONFIG, **{key: config[key] for key in config if _is_ours(key)}}
        if unknown := sorted(values.keys() - _CONFIG.keys()):
            raise UsageError(f"{unknown[0]} is not a key of gradient clipping; these are: {', '.join(_CONFIG)}")
        ceiling = _config_number("grad_clip_norm", values)
        percentile = _config_number("grad_clip_percentile", values)
        automatic = values["auto_grad_clip"]
        if not isinstance(automatic, bool):
            raise UsageError(f"auto_grad_clip = {automatic!r}: give true or false")
        if not 0 < ceiling < math.inf:
            raise UsageError(f"grad_clip_norm = {ceiling!r}: give a finite number above 0, a large one for no ceiling")
        if not 0 < percentile <= 100:
            raise UsageError(f"grad_clip_percentile = {percentile!r}: give a number above 0, up to 100")
        return cls.percentile(ceiling, percentile) if automatic else cls(max_norm=ceiling)

    @classmethod
    def _adaptive(
        cls,
        ceiling: float | None,
        policy: Policy,
        nonfinite: NonfiniteAction,
        spike: SpikeAction,
        spike_factor: float,
        watch: Sequence[Policy],
    ) -> Clip:
        return cls(
            max_norm=ceiling,
            policy=policy,
            nonfinite=nonfinite,
            spike=spike,
            spike_factor=spike_factor,
            watch=watch,  # type: ignore[arg-type]  # __post_init__ makes a tuple of it
        )

    def encode(self, group: str) -> dict[str, Any]:
        """The wire form; fields with default values are left out, because older daemons do not know them."""
        max_norm = None if self.max_norm is None else encode_number(self.max_norm)
        wire: dict[str, Any] = {"group": group, "max_norm": max_norm, "zero_rule": self.zero_rule}
        if self.policy != _FIXED:
            wire["policy"] = self.policy.encode()
        if self.nonfinite != "propagate":
            wire["nonfinite"] = self.nonfinite
        if self.spike != "clip":
            wire["spike"] = self.spike
        if self.spike_factor != 3.0:
            wire["spike_factor"] = self.spike_factor
        if self.watch:
            wire["watch"] = [policy.encode() for policy in self.watch]
        return wire


_CONFIG: Mapping[str, Any] = {"grad_clip_norm": 1.0, "auto_grad_clip": True, "grad_clip_percentile": 95.0}


def _is_ours(key: object) -> bool:
    return isinstance(key, str) and key.startswith(("grad_clip", "auto_grad_clip"))


def _config_number(key: str, values: Mapping[str, Any]) -> float:
    value = values[key]
    if isinstance(value, str):
        raise UsageError(f"{key} = {value!r}: give a number, not a text (YAML reads 1e-3 as a text: write 1.0e-3)")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise UsageError(f"{key} = {value!r}: give a number, not {type(value).__name__}")
    return float(value)


def _require_one_of(field: str, value: object, names: Sequence[str]) -> None:
    if value not in names:
        raise UsageError(f"Clip({field}={value!r}): one of {', '.join(map(repr, names))}")


def _require_policy(field: str, value: object) -> None:
    if not isinstance(value, Policy) or type(value) is Policy:
        raise UsageError(f"Clip({field}={value!r}): give gradsync.Percentile(…), ZScore(…), Fixed() or Observe()")
