"""The two lines. Run it with: gradsyncd run -- torchrun --nproc-per-node 2 clients/python/examples/minimal.py"""

import os

import torch

import gradsync
import gradsync.torch as gst

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

torch.manual_seed(int(os.environ.get("RANK", 0)) + 1)  # every rank its own data
gs = gst.attach(model, clip=gradsync.Clip(max_norm=1.0))
for _ in range(20):
    x = torch.randn(32, 16)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    loss.backward()
    report = gs.step(optimizer)
    print(f"step {report.step}: loss {loss.item():.3f} norm {report.norm:.3f}{' clipped' if report.clipped else ''}")
gs.close()
