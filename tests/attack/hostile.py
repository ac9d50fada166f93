"""What hostile clients do to the sockets of a daemon."""

from __future__ import annotations

import array
import contextlib
import errno
import socket
import struct
import threading

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
