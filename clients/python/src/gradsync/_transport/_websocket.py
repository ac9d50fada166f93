"""A WebSocket without a thread of its own: any thread sends, one at a time reads. All frames are made by `websockets`.

`_mutex` guards the protocol and the bytes on their way out. No thread waits for the peer while it holds the lock.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections import deque

from websockets.client import ClientProtocol
from websockets.exceptions import ConnectionClosed, ConnectionClosedError, InvalidState
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import SEND_EOF, State

__all__ = ["SLICE_S", "WebSocket"]

SLICE_S = 0.5  # a waiting thread handles Ctrl-C at least this often, even if another thread got the signal
_RECEIVE_BYTES = 1 << 14  # more than most answers
_SEND_S = 30.0  # how long a peer may take nothing at all


class WebSocket:
    """A client's connection over `sock`, which belongs to it from now on."""

    def __init__(self, sock: socket.socket, protocol: ClientProtocol) -> None:
        sock.setblocking(False)
        self.socket = sock
        self._protocol = protocol
        self._mutex = threading.Lock()
        self._out = bytearray()  # what the socket has not taken yet
        self._inbox: deque[bytes] = deque()
        self._parts: list[bytes] = []  # fragments of a message that is not complete
        self._broken = ""  # why this side gave the connection up, where it did

    # sending

    def send(self, text: str) -> None:
        """Sends a message, or as much of it as the socket takes now; `drain` or a later call sends the rest.

        Raises:
            ConnectionClosed: nothing of it was sent.
        """
        data = text.encode()
        with self._mutex:
            try:
                self._protocol.send_text(data)
                self._write()
            except (InvalidState, OSError) as error:
                raise ConnectionClosedError(self._protocol.close_rcvd, None) from error
            except BaseException:  # Ctrl-C in the middle of a frame: the peer could not read what follows
                self.give_up("interrupted while sending")
                raise

    def drain(self) -> None:
        """Waits until the socket has taken everything; gives the peer up if it takes nothing for a while."""
        deadline = time.monotonic() + _SEND_S
        try:
            while left := len(self._out):
                if time.monotonic() >= deadline:
                    self.give_up(f"the daemon took nothing of a message for {_SEND_S:g} s")
                    return
                self._poll(select.POLLOUT, min(SLICE_S, _SEND_S))
                with self._mutex:
                    self._write()
                if len(self._out) < left:
                    deadline = time.monotonic() + _SEND_S
        except (OSError, ValueError):  # closed meanwhile: the thread that reads says why
            return
        except BaseException:
            self.give_up("interrupted while sending")
            raise

    def send_close(self) -> None:
        """Begins the closing handshake; the thread that reads ends it."""
        with self._mutex, contextlib.suppress(InvalidState, OSError):
            self._protocol.send_close(CloseCode.NORMAL_CLOSURE)
            self._write()

    def _write(self) -> None:
        said = self._protocol.data_to_send()
        self._out += b"".join(said)
        with contextlib.suppress(BlockingIOError):
            if self._out:
                del self._out[: self.socket.send(self._out)]
        if SEND_EOF in said:
            with contextlib.suppress(OSError):
                self.socket.shutdown(socket.SHUT_WR)

    # reading

    def readable(self, timeout: float | None) -> bool:
        """Whether `receive` has something to do; waits for it, for `timeout` seconds at most."""
        if self._inbox or self._protocol.state is State.CLOSED:
            return True
        try:
            return self._poll(select.POLLIN | (select.POLLOUT if self._out else 0), timeout)
        except (OSError, ValueError):  # closed meanwhile
            return True

    def _poll(self, mask: int, timeout: float | None) -> bool:
        watch = select.poll()
        watch.register(self.socket, mask)
        return bool(watch.poll(None if timeout is None else timeout * 1000))

    def receive(self) -> bytes | None:
        """The next message, or None where it has not come as a whole yet; never waits.

        Raises:
            ConnectionClosed: there are no more.
        """
        if not self._inbox:
            self.pump()
        if self._inbox:
            return self._inbox.popleft()
        if self._protocol.state is State.CLOSED:
            raise self._protocol.close_exc
        return None

    def pump(self) -> None:
        """Gives the protocol what came, and sends what it answers by itself; never waits."""
        protocol = self._protocol
        if protocol.state is State.CLOSED:
            return
        if self._broken:  # the parser may have been left in the middle of what came
            raise ConnectionClosedError(None, None)
        try:
            data: bytes | None = self.socket.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            data = None
        except OSError:
            data = b""
        with self._mutex:
            if data:
                protocol.receive_data(data)
            elif data is not None:
                protocol.receive_eof()
            for event in protocol.events_received():
                if isinstance(event, Frame) and event.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
                    self._parts.append(bytes(event.data))
                    if event.fin:
                        self._inbox.append(b"".join(self._parts))
                        self._parts.clear()
            with contextlib.suppress(OSError):  # the end of the stream is read in a moment
                self._write()
            if protocol.state is State.CLOSING and (protocol.close_rcvd or protocol.parser_exc):
                protocol.receive_eof()  # over a unix socket nothing is gained by waiting for the end of the stream

    # the end

    def give_up(self, reason: str) -> None:
        """Ends the connection without a closing frame. The socket stays open for the threads that wait on it."""
        self._broken = self._broken or reason
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def dispose(self) -> None:
        """Closes the socket; no thread may read any more."""
        self.give_up("closed")
        self.socket.close()

    def reason(self, closed: ConnectionClosed) -> str:
        """Why the connection ended, in words."""
        return self._broken or str(closed)
