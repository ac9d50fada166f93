"""What hostile clients do to the sockets of a daemon, and a daemon that has to end as it should."""

from __future__ import annotations

import array
import contextlib
import errno
import os
import re
import signal
import socket
import struct
import threading
import time
from types import TracebackType

import daemon

FINDING = re.compile(rb"Sanitizer|runtime error:|assertion", re.IGNORECASE)
LINGER_S = 3600


class Lingering:
    """A TCP socket whose last close waits for an hour: it has unsent data and SO_LINGER, and its peer does not read."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            self.socket = socket.create_connection(listener.getsockname())
            self._peer = listener.accept()[0]
        self.socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while self.socket.send(bytes(1 << 16)):
                pass
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, LINGER_S))

    def pass_on(self, connection: socket.socket, data: bytes) -> bool:
        """Sends it along and forgets it, so that the copy that travels is the last.

        False: the system does not let it through."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [self.socket.fileno()]))]
        try:
            connection.sendmsg([data], rights)
        except OSError as problem:
            if problem.errno not in (errno.EPERM, errno.EPIPE, errno.ECONNRESET):
                raise
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return False
        finally:  # where the daemon was faster than this, our copy is the last one, and closing it waits
            threading.Thread(target=self.socket.close, daemon=True).start()
        return True

    def let_go(self) -> None:
        """Ends every wait for it."""
        self._peer.close()


class Daemon(daemon.Daemon):
    """Told to stop in the end, it has to exit 0, and a sanitizer that it was built with has found nothing."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self.process.poll() is None:
                self.process.send_signal(signal.SIGTERM)
            said = self._pending + self._rest()
            status = self.process.wait(daemon.DEADLINE_S)
            found = FINDING.search(said)
            assert found is None, said[max(0, found.start() - 200) :].decode(errors="replace")
            assert kind is not None or status == 0, f"it ended with {status}: {said[-2000:]!r}"
        finally:
            super().__exit__(kind, error, trace)

    def _rest(self) -> bytes:
        """What it writes until it has ended."""
        assert self.process.stderr is not None
        said, end = b"", time.monotonic() + daemon.DEADLINE_S
        while self._selector.select(max(0.0, end - time.monotonic())):
            more = os.read(self.process.stderr.fileno(), 1 << 16)
            if not more:
                return said
            said += more
        raise AssertionError(f"it has not ended after {daemon.DEADLINE_S:.0f} s: {said[-2000:]!r}")
