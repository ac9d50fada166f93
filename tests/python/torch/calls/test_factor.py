"""What gradients are multiplied by to clip them: the coefficient, not its 16-bit rounding."""

from __future__ import annotations

import pytest
import torch

from gradsync.torch._statistics._arranged import _factor
from gradsync.torch._statistics._measurer import Measurer

COEFFICIENT = 0.123456789  # 0.12353515625 in bfloat16


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_every_product_is_rounded_once(dtype: torch.dtype) -> None:
    gradient = torch.randn(10_000, generator=torch.Generator().manual_seed(0)).to(dtype)
    clipped = gradient.clone()
    measurer = Measurer([(gradient.numel(), dtype, gradient.device)], 2.0)
    measurer.arrange([clipped]).multiply(COEFFICIENT)
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    assert torch.equal(clipped, (gradient.to(wide) * torch.tensor(COEFFICIENT, dtype=wide)).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_other_devices_get_a_number_which_their_kernels_take_in_float32(dtype: torch.dtype) -> None:
    assert _factor(COEFFICIENT, torch.device("cuda", 0), dtype) == COEFFICIENT
    assert isinstance(_factor(COEFFICIENT, torch.device("cuda", 0), dtype), float)
