"""Nodes in network namespaces of their own, joined by veth through a bridge: links that lose what the kernel drops."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
from pathlib import Path

from daemon import DEADLINE_S, Daemon
from node_jobs import TOKEN, Nodes

PORT = 9478


def ran(*command: str, given: str | None = None) -> None:
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"


def not_allowed(rules: bool) -> str | None:
    """Why there can be no namespaces here, with rules that drop packets where `rules`; None where there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program in ("ip", "nft") if rules else ("ip",):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    name = f"gradsync-{secrets.token_hex(3)}"
    try:
        ran("ip", "netns", "add", name)
        ran("ip", "-n", name, "link", "add", "name", "port", "type", "veth", "peer", "name", "other")
        ran("ip", "-n", name, "link", "add", "name", "switch", "type", "bridge")
        if rules:
            ran("ip", "netns", "exec", name, "nft", "add", "table", "inet", "gradsync")
    except AssertionError as refused:
        return f"network namespaces are not allowed: {refused}"
    finally:
        subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
    return None


class NodesInNamespaces(Nodes):
    """Node i is at 10.77.0.(2 + i), in a namespace with this one interface, `eth0`."""

    def __init__(self, folder: Path, count: int, listen: str | None = None) -> None:
        """`listen`: where each daemon listens for the others, by default at the address of its node."""
        self._listen = listen
        self._names = [f"gradsync-{secrets.token_hex(3)}" for _ in range(count + 1)]
        self.folder, self.port = folder, PORT
        self.coordinator = f"10.77.0.2:{PORT}"
        (folder / "token").write_text(TOKEN)
        os.chmod(folder / "token", 0o600)
        self._stack = contextlib.ExitStack()
        try:
            self._join()
            self.daemons = [self._start(node) for node in range(count)]
        except BaseException:
            self._stack.close()
            raise

    def _join(self) -> None:
        *nodes, switch = self._names
        for name in self._names:
            ran("ip", "netns", "add", name)
            self._stack.callback(ran, "ip", "netns", "delete", name)
            ran("ip", "-n", name, "link", "set", "lo", "up")
        ran("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
        ran("ip", "-n", switch, "link", "set", "bridge", "up")
        for node, name in enumerate(nodes):
            port = f"port{node}"
            ran("ip", "-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", port, "netns", switch)
            ran("ip", "-n", switch, "link", "set", port, "master", "bridge", "up")
            ran("ip", "-n", name, "address", "add", f"10.77.0.{2 + node}/24", "dev", "eth0")
            ran("ip", "-n", name, "link", "set", "eth0", "up")

    def _start(self, node: int) -> Daemon:
        folder = self.folder / f"node{node}"
        folder.mkdir(exist_ok=True)
        peer = (
            "--peer-listen",
            f"{self._listen or f'10.77.0.{2 + node}'}:{PORT}",
            "--peer-token-file",
            str(self.folder / "token"),
        )
        within = ("ip", "netns", "exec", self._names[node])
        daemon = Daemon(*peer, "--peer-node", f"node{node}", folder=str(folder), before=within)
        return self._stack.enter_context(daemon)

    # what a test does to the link of a node

    def link_down(self, node: int) -> None:
        ran("ip", "-n", self._names[node], "link", "set", "eth0", "down")

    def drop(self, node: int, *hooks: str) -> None:
        """`input`, `output` or both: what comes to the node and what goes out of it is dropped."""
        chains = "".join(f"chain {hook} {{ type filter hook {hook} priority 0; policy drop; }}\n" for hook in hooks)
        ran("ip", "netns", "exec", self._names[node], "nft", "-f", "-", given=f"table inet broken {{\n{chains}}}\n")

    def connections_out(self, node: int) -> set[int]:
        """The ports here of connections to the port of another daemon."""
        table = subprocess.run(
            ["ip", "netns", "exec", self._names[node], "cat", "/proc/net/tcp", "/proc/net/tcp6"],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=True,
        ).stdout
        rows = [row.split() for row in table.splitlines() if ":" in row]
        ends = [(row[1].rsplit(":", 1)[1], row[2].rsplit(":", 1)[1]) for row in rows if row[3] == "01"]
        return {int(here, 16) for here, there in ends if int(there, 16) == PORT}

    def drop_connections(self, node: int, ports: set[int]) -> None:
        """What comes for these ports of the node, and what goes out from them, is dropped."""
        listed = f"{{ {', '.join(map(str, sorted(ports)))} }}"
        chains = "".join(
            f"chain {hook} {{ type filter hook {hook} priority 0; policy accept; tcp {end} {listed} drop; }}\n"
            for hook, end in (("input", "dport"), ("output", "sport"))
        )
        ran("ip", "netns", "exec", self._names[node], "nft", "-f", "-", given=f"table inet broken {{\n{chains}}}\n")

    def heal(self, node: int) -> None:
        ran("ip", "-n", self._names[node], "link", "set", "eth0", "up")
        if shutil.which("nft"):
            within = ("ip", "netns", "exec", self._names[node])
            ran(*within, "nft", "-f", "-", given="table inet broken {}\ndelete table inet broken\n")
