"""Training scripts with tensor parallelism of plain tensors, for test_audit_by_hand.py."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from audit_scripts import STEPS, case, main, rank


def feed_forward() -> Any:
    """Its columns and rows are cut over two ranks; its scale is whole."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Module()
    model.w1 = nn.Parameter(torch.randn(6, 4).chunk(2, 0)[rank()].clone())
    model.w2 = nn.Parameter(torch.randn(4, 6).chunk(2, 1)[rank()].clone())
    model.scale = nn.Parameter(torch.randn(4))
    return model


def steps(model: Any, over_tp: bool) -> None:
    """No optimizer steps, so that the gradients of each step are known."""
    import torch.distributed as dist
    from torch import nn

    for step in range(STEPS + 1):
        for parameter in model.parameters():
            parameter.grad = parameter.detach() * (step + 1)
        cut = nn.utils.get_total_norm([model.w1.grad, model.w2.grad]).square()
        if over_tp:
            dist.all_reduce(cut)
        norm = (cut + nn.utils.get_total_norm([model.scale.grad]).square()).sqrt()
        nn.utils.clip_grads_with_norm_(model.parameters(), 1.0, norm)


@case
def norm_over_tp() -> None:
    steps(feed_forward(), over_tp=True)


@case
def norm_that_forgets_tp() -> None:
    steps(feed_forward(), over_tp=False)


@case
def norm_that_forgets_tp_with_the_line() -> None:
    import gradsync.torch as gst

    model = feed_forward()
    gst.audit(model, mesh={"tp": 2}, sharded=[gst.Sharded("w1", 0, "tp"), gst.Sharded("w2", 1, "tp")])
    steps(model, over_tp=False)


if __name__ == "__main__":
    main()
