"""A small character transformer and the text it reads: the sources of Python's own standard library."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

VOCABULARY = 128  # ASCII; what is not, becomes a question mark


def read_text(limit_bytes: int = 4 << 20) -> torch.Tensor:
    """The same characters, in the same order, on every rank."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    text = bytearray()
    for path in sorted(folder.glob("*.py")) + sorted(folder.glob("[a-z]*/*.py")):
        if "site-packages" in path.parts or "dist-packages" in path.parts:
            continue
        text += path.read_bytes()
        if len(text) >= limit_bytes:
            break
    tokens = torch.frombuffer(bytearray(text[:limit_bytes]), dtype=torch.uint8).long()
    return torch.where(tokens < VOCABULARY, tokens, ord("?"))


def draw(text: torch.Tensor, batch: int, context: int, seed: int, *where: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch that depends on nothing but its arguments; `where` is (step, rank, micro-batch)."""
    for part in where:
        seed = seed * 100_003 + part
    starts = torch.randint(len(text) - context - 1, (batch, 1), generator=torch.Generator().manual_seed(seed % 2**63))
    window = text[starts + torch.arange(context + 1)]
    return window[:, :-1], window[:, 1:]


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)
        self.before_feed = nn.LayerNorm(width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, context, width = x.shape
        parts = self.query_key_value(self.before_attention(x)).view(batch, context, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.mix(attended.transpose(1, 2).reshape(batch, context, width))
        return x + self.feed(self.before_feed(x))


class CharModel(nn.Module):
    def __init__(self, context: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean loss of predicting each next character."""
        x = self.characters(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())
