"""The exact norm and clip in a Trainer of Lightning, or the whole sync of gradients.

trainer = lightning.Trainer(…, gradient_clip_val=1.0, callbacks=[GradsyncCallback()])  # Lightning reduces
trainer = lightning.Trainer(…, gradient_clip_val=1.0, strategy=GradsyncStrategy())  # gradsync reduces, no DDP
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy

import gradsync.torch as gst
from gradsync import StepReport
from gradsync.errors import UsageError

from ._clip_call import bare, clip_or_observe

__all__ = ["GradsyncCallback", "GradsyncStrategy"]


def _check(trainer: lightning.Trainer, module: lightning.LightningModule, what: str) -> None:
    if not module.automatic_optimization:
        raise UsageError(
            f"{what} with manual optimization: Lightning does not say when a step's last backward is over; call "
            "gradsync.torch.init() or attach() in the module, as in a loop of your own"
        )
    if trainer.gradient_clip_algorithm == "value":
        raise UsageError(
            f"{what} with gradient_clip_algorithm='value': gradsync clips by the norm; set it to 'norm', or leave the "
            "callback out"
        )


class GradsyncCallback(lightning.Callback):
    """`gradient_clip_val` clips by the exact norm of the whole model, which DDP or FSDP2 reduces.

    Without `gradient_clip_val` the norm is measured, and nothing is clipped. `gradsync.torch.last_report()` has the
    report of each step.

    Args:
        options: of `gradsync.torch.init`: `mesh`, `clip`, `mode`, `job` and so on. The mesh of `ModelParallelStrategy`
            is known.

    Raises:
        UsageError: when fit begins: manual optimization, `gradient_clip_algorithm="value"`, DeepSpeed, or FSDP1.
        As `gradsync.torch.init` does.
    """

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._own: tuple[Any, Any] | None = None

    def on_fit_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        _check(trainer, pl_module, "GradsyncCallback")
        strategy = trainer.strategy
        if isinstance(strategy, (DeepSpeedStrategy, FSDPStrategy, GradsyncStrategy)):
            raise UsageError(
                f"GradsyncCallback with {type(strategy).__name__}: that strategy clips by itself, or its parameters "
                "are flat; use DDPStrategy or ModelParallelStrategy, or gradsync audit, which needs nothing"
            )
        options = dict(self._options)
        if isinstance(strategy, ModelParallelStrategy):
            options.setdefault("mesh", strategy.device_mesh)
        gst.init(pl_module, **options)
        plugin = trainer.precision_plugin
        self._own = (plugin, plugin.clip_grad_by_norm)
        plugin.clip_grad_by_norm = functools.partial(self._clip, pl_module, plugin)

    def _clip(self, module: Any, plugin: Any, optimizer: Any, clip_val: float) -> None:
        assert self._own is not None
        own = functools.partial(self._own[1], optimizer, clip_val)
        scaler = getattr(plugin, "scaler", None)
        clip_or_observe(own, module.parameters(), float(clip_val), scaler=scaler, optimizers=[bare(optimizer)])

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        if not trainer.gradient_clip_val:
            own = functools.partial(torch.nn.utils.clip_grad_norm_, list(pl_module.parameters()), math.inf)
            scaler = getattr(trainer.precision_plugin, "scaler", None)
            clip_or_observe(own, pl_module.parameters(), math.inf, scaler=scaler, optimizers=[bare(optimizer)])

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if self._own is not None:
            plugin, clip = self._own
            plugin.clip_grad_by_norm = clip
            self._own = None
            gst.close()


class GradsyncStrategy(DDPStrategy):
    """Ranks started as `DDPStrategy` starts them; gradsync reduces, measures and clips in DDP's place.

    `gradient_clip_val` and `accumulate_grad_batches` are the trainer's, and begin with the weights of rank 0. `report`
    has the report of the last step. Gradients lie in float32 or in bfloat16 (`precision="bf16-mixed"`, `"bf16-true"`).

    Args:
        sync: of `gradsync.torch.attach`: `mesh`, `clip`, `formula`, `job` and so on.
        options: of `DDPStrategy`.

    Raises:
        UsageError: when fit begins: manual optimization, `gradient_clip_algorithm="value"`, or a loss scale
            (`precision="16-mixed"`), which Lightning applies inside its own step. At the first step: LBFGS.
        As `gradsync.torch.attach` does.
    """

    strategy_name = "gradsync"

    def __init__(self, *, sync: dict[str, Any] | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._sync_options = sync or {}
        self._sync: gst.GradSync | gst.OffSync | None = None
        self._max_norm: float | None = None

    @property
    def report(self) -> StepReport | None:
        return None if self._sync is None else self._sync.report

    def configure_ddp(self) -> None:
        """Attaches, where `DDPStrategy` would wrap the module."""
        module = self.lightning_module
        assert module is not None
        trainer = module.trainer
        _check(trainer, module, "GradsyncStrategy")
        if getattr(self.precision_plugin, "scaler", None) is not None:
            raise UsageError(
                "GradsyncStrategy with precision='16-mixed': Lightning unscales inside its own step; use 'bf16-mixed', "
                "or GradsyncCallback with DDPStrategy"
            )
        options = {"weights": "broadcast", "accumulate": trainer.accumulate_grad_batches, **self._sync_options}
        self._sync = gst.attach(module, **options)
        self._max_norm = trainer.gradient_clip_val or None
        self.precision_plugin.clip_grad_by_norm = self._clipped_already

    def _clipped_already(self, optimizer: Any, clip_val: float) -> None:
        """`optimizer_step` has done it, with the reduction."""

    def optimizer_step(
        self, optimizer: torch.optim.Optimizer, closure: Callable[[], Any], model: Any = None, **rest: Any
    ) -> Any:
        """Reduces after the last backward and before the optimizer's hooks, which look at reduced gradients only."""
        assert self._sync is not None
        if isinstance(bare(optimizer), torch.optim.LBFGS):
            raise UsageError(
                "GradsyncStrategy with LBFGS: it computes gradients several times in a step; use DDPStrategy"
            )
        loss = closure()
        if self._max_norm is None:
            self._sync.finish()
        else:
            self._sync.finish(max_norm=self._max_norm)
        return super().optimizer_step(optimizer, lambda: loss, model, **rest)

    def teardown(self) -> None:
        if self._sync is not None:
            self._sync.close()
            self._sync = None
        super().teardown()
