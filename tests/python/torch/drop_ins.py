"""What tests of torch's functions share: a job of one rank, a model, and the answers of a daemon to its rows."""

from __future__ import annotations

import math
import struct
from typing import Any

import torch
from fake_daemon import FakeDaemon, report
from torch import nn

import gradsync.torch as gst


class Norms:
    """Answers as a daemon would: the norm of the rows in the table, and torch's coefficient of it."""

    def __init__(self, daemon: FakeDaemon) -> None:
        self.daemon = daemon
        self.norm = 0.0
        for method in ("step.finish", "norm.compute", "clip.apply"):
            daemon.script[method] = getattr(self, method.replace(".", "_"))

    def rows(self) -> list[tuple[Any, ...]]:
        return self.daemon.table(self.daemon.live_buffers[-1])

    def norm_compute(self, params: dict[str, Any]) -> Any:
        kind = self.daemon.of_unlocked("gradients.declare")[-1]["options"]["norm_type"]
        p = math.inf if kind == "Infinity" else kind
        rows = [row for row in self.rows() if row[0]]
        assert all(row[0] == (params["epoch"] << 32) + params["attempt"] + 1 for row in rows)
        if any(row[5] for row in rows):
            self.norm = math.nan
        elif math.isinf(p):
            self.norm = max((row[4] for row in rows), default=0.0)
        else:
            self.norm = sum(row[1] * row[3] ** p for row in rows) ** (1 / p)
        self.norm = struct.unpack("f", struct.pack("f", self.norm))[0]
        return self.answer(params, next_attempt=params["attempt"])

    def clip_apply(self, params: dict[str, Any]) -> Any:
        self.daemon.attempt += 1
        coefficient = 1.0
        if params.get("max_norm") is not None:
            assert math.isfinite(float(params["max_norm"]))  # a daemon refuses others
            norm = torch.tensor(self.norm)
            coefficient = torch.clamp(float(params["max_norm"]) / (norm + 1e-6), max=1.0).item()
        return self.answer(params, coefficient=coefficient if coefficient == coefficient else "NaN", check_next=False)

    def step_finish(self, params: dict[str, Any]) -> Any:
        self.norm_compute(params)
        return self.clip_apply(params)

    def answer(self, params: dict[str, Any], **more: Any) -> Any:
        norm = self.norm if math.isfinite(self.norm) else "NaN"
        return report(
            params["step"], params["epoch"], params["attempt"], **({"norm": norm, "data_path": "stats"} | more)
        )


def init(daemon: FakeDaemon, model: Any, **options: Any) -> Any:
    return gst.init(model, **({"address": daemon.path, "job": "j", "rank": 0, "world_size": 1} | options))


def net(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).to(dtype)


def backward(model: nn.Module, factor: float = 10.0) -> None:
    torch.manual_seed(1)
    dtype = next(model.parameters()).dtype
    (model(torch.randn(5, 4).to(dtype)).square().sum() * factor).backward()


def copies(model: nn.Module) -> list[torch.Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]
