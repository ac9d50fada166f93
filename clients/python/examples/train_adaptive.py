"""One rank of a training whose clipping threshold follows the run, with checkpoints; demo_adaptive.py starts it.

    gradsyncd run -- torchrun --nproc-per-node 2 clients/python/examples/train_adaptive.py --until 200 --save half
    gradsyncd run -- torchrun --nproc-per-node 2 clients/python/examples/train_adaptive.py --until 400 --resume half

With `--json PREFIX` rank r writes PREFIX.r, a JSON object per line: one for each step, one at the end.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import torch
from char_model import CharModel, draw, read_text
from train_char import digest

import gradsync
import gradsync.torch as gst

ANY_SEED = 1 << 31


class Run:
    """One rank: the model and what its checkpoint holds."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.rank = int(os.environ["RANK"])
        self.text = read_text()
        torch.manual_seed(options.seed)  # equal weights everywhere: attach compares them
        self.model = CharModel(options.context, options.width, options.layers, options.heads)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=options.lr)
        self.next_step = 0
        saved = torch.load(f"{options.resume}.{self.rank}") if options.resume else None
        if saved is not None:
            self.model.load_state_dict(saved["model"])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.next_step = saved["next_step"]
        clip = gradsync.Clip.percentile(options.ceiling, options.percentile, options.window, options.warmup)
        self.gs = gst.attach(self.model, clip=clip)
        if saved is not None:
            self.gs.load_state_dict(saved["gradsync"])
            torch.set_rng_state(saved["rng"])
        else:
            torch.manual_seed(options.seed * 1000 + 1 + self.rank)  # every rank its own data

    def step(self) -> dict[str, object]:
        options = self.options
        tokens, targets = draw(self.text, options.batch, options.context, int(torch.randint(ANY_SEED, ())))
        loss = self.model(tokens, targets)
        loss.backward()
        report = self.gs.step(self.optimizer)
        record: dict[str, object] = {"kind": "step", "step": self.next_step, "loss": loss.item(), "norm": report.norm}
        record |= {"threshold": report.threshold, "clipped": report.clipped, "remembered": report.policy_digest}
        self.next_step += 1
        return record

    def save(self, prefix: Path) -> None:
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "gradsync": self.gs.state_dict(),
            "rng": torch.get_rng_state(),
            "next_step": self.next_step,
        }
        torch.save(state, f"{prefix}.{self.rank}")

    def end(self) -> dict[str, object]:
        parameters = list(self.model.parameters())
        return {
            "kind": "end",
            "parameters": sum(p.numel() for p in parameters),
            "weights": digest(p.detach() for p in parameters),
        }


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--until", type=int, default=200, help="steps that are done at the end, resumed ones included")
    parser.add_argument("--ceiling", type=float, default=1.0, help="the threshold is never above it")
    parser.add_argument("--percentile", type=float, default=95.0, help="of the last norms, before clipping")
    parser.add_argument("--window", type=int, default=1000, help="norms that are remembered")
    parser.add_argument("--warmup", type=int, default=100, help="norms before which the ceiling alone decides")
    parser.add_argument("--batch", type=int, default=8, help="sequences in a step of a rank")
    parser.add_argument("--context", type=int, default=64, help="characters in a sequence")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="rank r writes its records to JSON.r")
    parser.add_argument("--save", type=Path, help="rank r writes its checkpoint to SAVE.r at the end")
    parser.add_argument("--resume", type=Path, help="rank r begins with the checkpoint RESUME.r")
    return parser.parse_args(arguments)


def main() -> None:
    options = parse()
    run = Run(options)
    records = open(f"{options.json}.{run.rank}", "w") if options.json else None  # noqa: SIM115
    with run.gs:
        while run.next_step < options.until:
            record = run.step()
            if records:
                print(json.dumps(record), file=records)
            if run.rank == 0 and run.next_step % 100 == 0:
                print(
                    f"step {run.next_step:5}/{options.until}  loss {record['loss']:.4f}  norm {record['norm']:.4f}  "
                    f"threshold {record['threshold']:.4f}{'  clipped' if record['clipped'] else ''}",
                    flush=True,
                )
        if options.save:
            run.save(options.save)
    if records:
        print(json.dumps(run.end()), file=records, flush=True)


if __name__ == "__main__":
    main()
