"""The exact norm and clip in the Trainer of Hugging Face.

trainer = Trainer(model, arguments, train_dataset=data)
gradsync.integrations.transformers.init(trainer)  # the only line that is new
trainer.train()
"""

from __future__ import annotations

from typing import Any

import transformers

import gradsync.torch as gst

from . import accelerate

__all__ = ["GradsyncCallback", "init"]


class GradsyncCallback(transformers.TrainerCallback):
    """Joins when training begins, and leaves when it ends. `init` makes it and adds it to a trainer."""

    def __init__(self, trainer: transformers.Trainer, options: dict[str, Any]) -> None:
        self._trainer = trainer
        self._options = options

    def on_train_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        accelerate.init(self._trainer.accelerator, rest["model"], **self._options)
        # A Trainer takes one norm for each mesh of a model, and adds them up; this clip is that of all meshes at once.
        self._trainer._mixed_mesh_grads = False

    def on_train_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        gst.close()


def init(trainer: transformers.Trainer, **options: Any) -> GradsyncCallback:
    """The Trainer clips by gradsync: `max_grad_norm` stays what it was, and `grad_norm` in its log is the exact norm.

    With `max_grad_norm=0` the norm is measured and logged, and nothing is clipped.

    Args:
        trainer: one that has not begun to train; one process, DDP or FSDP2.
        options: of `gradsync.torch.init`: `mesh`, `clip`, `mode`, `job` and so on.

    Raises:
        when training begins, as `gradsync.integrations.accelerate.init` does.
    """
    callback = GradsyncCallback(trainer, options)
    trainer.add_callback(callback)
    return callback
