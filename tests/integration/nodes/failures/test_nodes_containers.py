"""Daemons in containers of one machine: they have one kernel, and the same path of the socket inside each."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from daemon import DEADLINE_S, Daemon
from node_faults import step_again
from node_jobs import NodeRank, Nodes, job_over
from ranks_in_threads import on_all, whole

INSIDE = "/mnt"
ENTER = ("unshare", "--mount", "sh", "-c", f'mount --bind "$0" {INSIDE} && exec "$@"')


def not_allowed(folder: Path) -> str | None:
    """Why there can be no mount namespaces here; None where there can."""
    tried = subprocess.run(
        [*ENTER, str(folder), "true"], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    return None if tried.returncode == 0 else f"mount namespaces are not allowed: {tried.stderr}"


class NodesInContainers(Nodes):
    def _start(self, node: int) -> Daemon:
        folder = self.folder / f"node{node}"
        folder.mkdir(exist_ok=True)
        peer = ("--peer-listen", f"127.0.0.{node + 2}:{self.port}", "--peer-token-file", str(self.folder / "token"))
        daemon = Daemon(*peer, "--peer-node", f"node{node}", folder=INSIDE, before=(*ENTER, str(folder)))
        self._stack.enter_context(daemon)
        daemon.socket = str(folder / "gradsync.sock")  # outside
        return daemon


def test_daemons_with_one_path_inside_their_containers_are_nodes_of_their_own(tmp_path: Path) -> None:
    if (reason := not_allowed(tmp_path)) is not None:
        pytest.skip(reason)
    with NodesInContainers(tmp_path, 2) as nodes, job_over(nodes, 1) as ranks:
        whole(on_all(ranks, NodeRank.declare))
        step_again(ranks, 0)
