"""Writes torch_clip_table.inc: what torch multiplies a gradient by, as bits, for norms and thresholds of both dtypes.

Run with the project's Python environment; the committed table was made with torch 2.13.0 on CPU.
"""

import math
import pathlib
import random
import struct

import torch


def bits(value: float) -> str:
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016x}"


def multiplier(norm: float, max_norm: float, dtype: torch.dtype) -> float:
    parameter = torch.nn.Parameter(torch.zeros(1, dtype=dtype))
    parameter.grad = torch.ones(1, dtype=dtype)
    torch.nn.utils.clip_grads_with_norm_([parameter], max_norm, torch.tensor(norm, dtype=dtype))
    return float(parameter.grad.item())


def pairs(random_numbers: random.Random) -> list[tuple[float, float]]:
    fixed = [(0.0, 1.0), (0.0, 0.0), (1.0, 1.0), (3.0, 1.0), (1.0 - 1e-7, 1.0), (1.0 + 1e-6, 1.0), (0.999999, 1.0)]
    fixed += [(5.0, 0.1), (0.1, 0.1), (1e-45, 1e-6), (3.4e38, 1.0), (2.5, 0.0), (math.inf, 1.0), (7.0, 7.000001)]
    fixed += [(3.4028234663852886e38, 1e300), (3e38, 1e300)]
    drawn = [(10 ** random_numbers.uniform(-6, 9), 10 ** random_numbers.uniform(-3, 2)) for _ in range(24)]
    near = [(limit * (1 + random_numbers.uniform(-2e-6, 2e-6)), limit) for _, limit in drawn[:10]]
    return fixed + drawn + near


def main() -> None:
    lines = [f"// Made by make_torch_clip_table.py with torch {torch.__version__}: dtype, norm, max_norm, multiplier."]
    for dtype, name in ((torch.float32, "Float32"), (torch.float64, "Float64")):
        for norm, max_norm in pairs(random.Random(20)):
            stored = float(torch.tensor(norm, dtype=dtype).item())
            factor = multiplier(stored, max_norm, dtype)
            lines.append(f"{{DType::{name}, {bits(stored)}, {bits(max_norm)}, {bits(factor)}}},")
    path = pathlib.Path(__file__).with_name("torch_clip_table.inc")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
