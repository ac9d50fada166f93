"""What the commands of `gradsync` have in common: texts that are shown as they are written, and what executes them."""

from __future__ import annotations

import argparse
from collections.abc import Callable

__all__ = ["AddParser", "add_command"]

AddParser = Callable[..., argparse.ArgumentParser]


def add_command(
    add: AddParser, name: str, run: Callable[[argparse.Namespace], int], **texts: str
) -> argparse.ArgumentParser:
    """Adds a command that `run` executes; `texts` are those of argparse: help, usage, description, epilog."""
    parser = add(name, formatter_class=argparse.RawDescriptionHelpFormatter, **texts)
    parser.set_defaults(run=run)
    return parser
