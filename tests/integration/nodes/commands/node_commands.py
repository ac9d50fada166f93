"""The commands of two nodes at once, as a user has them in two terminals: each with an environment of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from daemon import BINARY, DEADLINE_S, clean_environment, free_port
from node_jobs import TOKEN

DOCUMENTS = Path(__file__).parents[4] / "docs"


@dataclass(frozen=True)
class Done:
    """How the command of one node ended, and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def said(self) -> str:
        """On one line, because the commands wrap what they say."""
        return " ".join((self.out + self.err).split())


def documented(document: str, start: str, **given: str) -> list[list[str]]:
    """The two commands of a document that begin so, with what is given and without the script at their end."""
    lines = [line for line in (DOCUMENTS / document).read_text().splitlines() if line.startswith(start)]
    assert len(lines) == 2, lines
    given = {"NODE0": "127.0.0.2", "29500": str(free_port()), **given}
    for old, new in given.items():
        lines = [line.replace(old, new) for line in lines]
    python = {"torchrun": "torch.distributed.run", "gradsync": "gradsync"}
    words = [
        [[word] if word not in python else [sys.executable, "-m", python[word]] for word in line.split()[:-1]]
        for line in lines
    ]
    return [[part for word in line for part in word] for line in words]


def private_daemons(folder: Path, **more: str) -> list[dict[str, str]]:
    """What each node sets so that a tool which finds no daemon starts one that knows the other node's."""
    token = folder / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    port = free_port()
    return [
        {
            "GRADSYNCD": BINARY,
            "GRADSYNC_PEER_LISTEN": f"127.0.0.{node + 2}:{port}",
            "GRADSYNC_PEER_TOKEN_FILE": str(token),
            "GRADSYNC_PEER_NODE": f"node{node}",
            **more,
        }
        for node in range(2)
    ]


def run_on_nodes(
    folder: Path, commands: Sequence[Sequence[str]], environments: Sequence[Mapping[str, str]]
) -> list[Done]:
    """Runs all at once, and waits for them."""
    files = [[(folder / f"{node}.{name}").open("w+") for name in ("out", "err")] for node in range(len(commands))]
    started = [
        subprocess.Popen(command, stdout=out, stderr=err, env=clean_environment(OMP_NUM_THREADS="1", **environment))
        for command, (out, err), environment in zip(commands, files, environments, strict=True)
    ]
    try:
        codes = [process.wait(3 * DEADLINE_S) for process in started]
    finally:
        for process in started:
            _end(process)
        for file in (file for pair in files for file in pair):
            file.close()
    written = [[Path(file.name).read_text() for file in pair] for pair in files]
    return [Done(code, out, err) for code, (out, err) in zip(codes, written, strict=True)]


def _end(process: subprocess.Popen[bytes]) -> None:
    """A launcher that is asked to end ends its ranks, which one that is killed leaves behind."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(DEADLINE_S)
