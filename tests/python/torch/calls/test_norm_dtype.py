"""The norm that `clip_grad_norm_` returns is one value of one type on every rank of the job, whatever a rank holds."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import gradsync
from gradsync.torch import Session

VALUE = 0.1  # its square in float32 and in float64 differ


def norm_of_stage(address: str, job: str, rank: int, dtype: torch.dtype) -> torch.Tensor:
    """One rank of a pipeline of two stages, whose only parameter is of `dtype`."""
    parameter = nn.Parameter(torch.zeros(3, dtype=dtype))
    parameter.grad = torch.full_like(parameter, VALUE)
    tensor = gradsync.Tensor(
        f"stage{rank}.weight",
        (3,),
        dtype=str(dtype).removeprefix("torch."),
        mesh="mesh",
        placements={"pp": gradsync.Only(rank)},
    )
    with gradsync.connect(address) as client:
        attached = client.attach(job=job, rank=rank, world_size=2, meshes={"mesh": {"pp": 2}})
        session = Session(attached, [tensor], [parameter], 2.0, gradsync.Clip(), None, 60.0)
        norm = session.clip_grad_norm_([parameter], 1.0)
        session.close()
    return norm


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        ((torch.float64, torch.float32), torch.float64),
        ((torch.float32, torch.float64), torch.float64),
        ((torch.bfloat16, torch.float32), torch.float32),
        ((torch.float64, torch.float64), torch.float64),
    ],
)
def test_stages_of_different_dtypes_get_one_norm(real_daemon, dtypes, expected):
    job = f"norm-{dtypes[0]}-{dtypes[1]}".replace("torch.", "")
    with ThreadPoolExecutor(2) as ranks:
        running = [ranks.submit(norm_of_stage, real_daemon, job, rank, dtype) for rank, dtype in enumerate(dtypes)]
        norms = [one.result(timeout=120) for one in running]

    assert [norm.dtype for norm in norms] == [expected, expected]
    assert torch.equal(norms[0], norms[1])
    held = [torch.full((3,), VALUE, dtype=dtype).double() for dtype in dtypes]
    assert float(norms[0]) == pytest.approx(math.hypot(*map(float, torch.cat(held))), rel=1e-6)
