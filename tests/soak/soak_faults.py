"""The faults of a soak, drawn at random: one begins after the other, while jobs take steps."""

from __future__ import annotations

import collections
import contextlib
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence

from node_jobs import Nodes
from soak_job import Seat, SoakJob

LONGEST_STOP_S = 8.0  # a silent daemon is given up after 5
STRANGER_BYTES = 4096


class Faults:
    """`run` on a thread of its own, until `stop`. Everything that was stopped goes on by then."""

    def __init__(self, nodes: Nodes, jobs: Sequence[SoakJob], randomly: random.Random, *, kill_daemons: bool) -> None:
        self._nodes, self._jobs, self._random = nodes, jobs, randomly
        self._over = threading.Event()
        self.counts: collections.Counter[str] = collections.Counter()
        self.error: Exception | None = None
        kinds: list[Callable[[], None]] = [
            self.kill_rank,
            self.kill_rank,
            self.stop_rank,
            self.stop_daemon,
            self.stranger,
            self.quiet,
        ]
        self._kinds = [*kinds, self.kill_daemon, self.kill_daemon] if kill_daemons else kinds
        self._thread = threading.Thread(target=self._run, name="faults", daemon=True)

    def __enter__(self) -> Faults:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            while not self._over.wait(self._random.uniform(0.2, 2.0)):
                fault = self._random.choice(self._kinds)
                self.counts[fault.__name__] += 1
                fault()
        except Exception as error:
            self.error = error

    def _seat(self) -> Seat:
        return self._random.choice(self._random.choice(self._jobs).seats)

    def _node(self) -> int:
        return self._random.randrange(len(self._nodes.daemons))

    def quiet(self) -> None:
        pass

    def kill_rank(self) -> None:
        with contextlib.suppress(ValueError):  # it was replaced just now, and closed
            self._seat().process.kill()

    def stop_rank(self) -> None:
        process = self._seat().process
        with contextlib.suppress(ValueError, ProcessLookupError):
            process.stop()
            self._over.wait(self._random.uniform(0.0, 3.0))
            process.go_on()

    def kill_daemon(self) -> None:
        node = self._node()
        self._nodes.kill(node)
        time.sleep(self._random.uniform(0.0, 1.0))
        self._nodes.start_again(node)

    def stop_daemon(self) -> None:
        process = self._nodes.daemons[self._node()].process
        process.send_signal(signal.SIGSTOP)
        time.sleep(self._random.uniform(0.0, LONGEST_STOP_S))
        process.send_signal(signal.SIGCONT)

    def stranger(self) -> None:
        """Bytes from someone who has no business at the port of links."""
        path = self._random.choice((b"/peer", b"/peer/data", b"/"))
        head = b"GET " + path + b" HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: gradsync.data.v1\r\n\r\n"
        with contextlib.suppress(OSError), socket.create_connection(self._address(), timeout=1.0) as stranger:
            stranger.sendall(self._random.choice((b"", head)) + self._random.randbytes(STRANGER_BYTES))
            stranger.recv(STRANGER_BYTES)

    def _address(self) -> tuple[str, int]:
        return f"127.0.0.{self._node() + 2}", self._nodes.port
