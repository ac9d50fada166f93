"""Daemons of several nodes on this machine, each at an address of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from pathlib import Path

from processes import Unavailable

TOKEN = "0123456789abcdef0123456789abcdef"
START_DEADLINE_S = 10.0
END_DEADLINE_S = 15.0


def free_port_on_nodes() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.2", 0))
        return int(probe.getsockname()[1])


class Nodes:
    """A gradsyncd for each node, with default settings but for `[peer]`; that of node 0 coordinates."""

    def __init__(self, binary: Path, folder: Path, count: int, *options: str) -> None:
        if not binary.exists():
            raise Unavailable(f"{binary} is missing: build it with `make build`")
        self.folder = folder
        self._port = free_port_on_nodes()
        self._binary, self._options = binary, options
        (folder / "token").write_text(TOKEN)
        os.chmod(folder / "token", 0o600)
        self._children: list[subprocess.Popen[bytes]] = []
        try:
            for node in range(count):
                (folder / f"node{node}").mkdir()
                self._children.append(self._started(node))
            for node in range(count):
                self._wait_until_it_listens(node)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Nodes:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def pid(self, node: int) -> int:
        return self._children[node].pid

    @property
    def pids(self) -> list[int]:
        return [child.pid for child in self._children]

    def log(self, node: int) -> str:
        return (self.folder / f"node{node}" / "log").read_text(errors="replace")

    def environment(self, node: int, local_world_size: int) -> dict[str, str]:
        """What the ranks of a node have to know, as a launcher sets it."""
        return {
            "GRADSYNC_ADDRESS": str(self._socket(node)),
            "GRADSYNC_COORDINATOR": f"127.0.0.2:{self._port}",
            "LOCAL_WORLD_SIZE": str(local_world_size),
        }

    def environments(self, local_world_size: int) -> list[dict[str, str]]:
        """One for each rank: the first ranks are on node 0."""
        return [
            self.environment(node, local_world_size)
            for node in range(len(self._children))
            for _ in range(local_world_size)
        ]

    def kill_and_start_again(self, node: int) -> None:
        """By SIGKILL; the next life begins as soon as the kernel says that this one is over."""
        self._children[node].kill()
        self._children[node].wait()
        self._children[node] = self._started(node)

    def close(self) -> None:
        for child in self._children:
            child.terminate()
        for child in self._children:
            try:
                child.wait(END_DEADLINE_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()

    def _socket(self, node: int) -> Path:
        return self.folder / f"node{node}" / "gradsync.sock"

    def _started(self, node: int) -> subprocess.Popen[bytes]:
        command = [str(self._binary), "serve", "--server-socket", str(self._socket(node))]
        command += ["--server-health", "127.0.0.1:0", "--peer-listen", f"127.0.0.{node + 2}:{self._port}"]
        command += ["--peer-token-file", str(self.folder / "token"), "--peer-node", f"node{node}", *self._options]
        with open(self.folder / f"node{node}" / "log", "ab") as log:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _wait_until_it_listens(self, node: int) -> None:
        deadline = time.monotonic() + START_DEADLINE_S
        while not self._socket(node).exists():
            if self._children[node].poll() is not None or time.monotonic() > deadline:
                said = self.log(node).strip().splitlines()
                raise Unavailable(f"node {node} does not listen: {said[-1] if said else 'it said nothing'}")
            time.sleep(0.01)
