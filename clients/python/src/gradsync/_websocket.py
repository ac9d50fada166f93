"""A WebSocket without a thread of its own: any thread sends, one at a time reads, the protocol itself is `websockets`'.

Texts are framed here, and those that come as a whole are read here (docs/adr/0016); all else goes through the library.

`mutex` guards the protocol and what is on its way out; nobody waits for the peer while holding it.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
import threading
import time
from collections import deque

from websockets.client import ClientProtocol
from websockets.exceptions import ConnectionClosed, ConnectionClosedError
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import Event, State

from ._frames import Seam, text_frame, whole_text

__all__ = ["WebSocket"]

# More than most answers; new memory of more pages costs more than another read. Less than any limit of messages, which
# is only known to the protocol.
_RECEIVE_BYTES = 1 << 14
_SEND_S = 30.0  # for a peer that takes nothing at all
_CLOSE_S = 2.0  # from the closing handshake until the peer's end of the stream
_SLICE_S = 0.5  # Ctrl-C is looked at this often, whichever thread got the signal


class WebSocket:
    """A client's connection over `sock`, which belongs to it from now on."""

    def __init__(self, sock: socket.socket, protocol: ClientProtocol) -> None:
        sock.setblocking(False)
        self.socket = sock
        self.broken = ""  #: why this side gave the connection up, where it did
        self._protocol = protocol
        self._torn = False  # the protocol was left in the middle of what came
        self._seam = Seam()
        self._mutex = threading.Lock()
        self._out = bytearray()  # what the socket has not taken yet
        self._kept = ""  # a message that goes before the next one, or when somebody reads
        self._inbox: deque[str | bytes] = deque()
        self._parts: list[Frame] = []  # of a message that came in fragments
        self._close_by = math.inf
        self._watch = select.poll()  # of the thread that reads
        self._mask = select.POLLIN
        self._watch.register(sock, self._mask)

    # sending

    def keep(self, text: str) -> None:
        """Leaves a message to the next `send`, or to the next thread that reads; waits for nothing."""
        try:
            with self._mutex:
                self._frame_kept()
                self._kept = text
        except BaseException:
            self.give_up("interrupted while sending")
            raise

    def send(self, text: str, *, instead: bool = False) -> None:
        """Sends a message, as much of it as the socket takes now: the rest is `drain`'s, or goes with the next one.

        What was kept goes first; `instead` where this message says it as well.

        Raises:
            ConnectionClosed: nothing of it was sent.
        """
        try:
            with self._mutex:
                if self._protocol.state is not State.OPEN:
                    ended = self._protocol
                    raise ConnectionClosedError(ended.close_rcvd, ended.close_sent, ended.close_rcvd_then_sent)
                if instead:
                    self._kept = ""
                if self._kept:
                    self._frame_kept()
                self._out += text_frame(text)
                self._flush()
        except OSError as error:
            raise ConnectionClosedError(None, None) from error
        except Exception:
            raise
        except BaseException:  # Ctrl-C in the middle of a frame: the rest of the stream would be noise
            self.give_up("interrupted while sending")
            raise

    def send_kept(self) -> None:
        """Sends what was kept, if nobody has."""
        try:
            with self._mutex, contextlib.suppress(OSError):  # the end of the stream is found by who reads
                self._frame_kept()
                self._write()
        except BaseException:
            self.give_up("interrupted while sending")
            raise

    def drain(self) -> None:
        """Waits until the socket has taken all that was sent; gives up a peer that takes nothing for a while."""
        if not self._out:
            return
        watch = select.poll()
        deadline = time.monotonic() + _SEND_S
        try:
            watch.register(self.socket, select.POLLOUT)
            while self._out:
                left = deadline - time.monotonic()
                if left <= 0:
                    self.give_up(f"the daemon took nothing of a message for {_SEND_S:g} s")
                    return
                watch.poll(min(left, _SLICE_S) * 1000)
                with self._mutex:
                    before = len(self._out)
                    self._write()
                    if len(self._out) < before:
                        deadline = time.monotonic() + _SEND_S
        except (OSError, ValueError):  # closed meanwhile: who reads says why
            return
        except BaseException:
            self.give_up("interrupted while sending")
            raise

    def send_close(self) -> None:
        """Begins the closing handshake; who reads ends it."""
        with self._mutex, contextlib.suppress(OSError):
            if self._protocol.state is State.OPEN:
                self._close_by = time.monotonic() + _CLOSE_S
                self._protocol.send_close(CloseCode.NORMAL_CLOSURE)
                self._write()

    def begin(self) -> None:
        """Sends what the protocol has to say first."""
        with self._mutex:
            self._write()

    def _frame_kept(self) -> None:
        """Under the mutex: what was kept is on its way out."""
        if self._kept and self._protocol.state is State.OPEN:
            text, self._kept = self._kept, ""
            self._out += text_frame(text)

    def _flush(self) -> None:
        """Under the mutex: as much as the socket takes now."""
        if self._out:
            try:  # noqa: SIM105 (in every step)
                del self._out[: self.socket.send(self._out)]
            except BlockingIOError:
                pass

    def _write(self) -> None:
        """Under the mutex: what the protocol has to say, after what is on its way out."""
        end = False
        for data in self._protocol.data_to_send():
            end = end or not data
            self._out += data
        self._flush()
        if end:
            with contextlib.suppress(OSError):
                self.socket.shutdown(socket.SHUT_WR)

    # reading

    def readable(self, timeout: float | None, awake_until: float = 0.0) -> bool:
        """Whether `receive` has something to do; waits for it, for `timeout` seconds at most.

        Until `awake_until`, of the monotonic clock, it does not sleep, but lets others run who can.
        """
        if self._inbox or self._protocol.state is State.CLOSED:
            return True
        if self._close_by < math.inf:
            left = max(0.0, self._close_by - time.monotonic())
            timeout = left if timeout is None else min(left, timeout)
        try:
            mask = select.POLLIN | select.POLLOUT if self._out or self._kept else select.POLLIN
            if mask != self._mask:
                self._mask = 0  # until it is so: a Ctrl-C comes between any two lines
                self._watch.modify(self.socket, mask)
                self._mask = mask
            if awake_until > 0 and timeout is not None:
                deadline = time.monotonic() + timeout
                if self._comes_by(min(awake_until, deadline)):
                    return True
                timeout = max(0.0, deadline - time.monotonic())
            return bool(self._watch.poll(None if timeout is None else timeout * 1000)) or self._is_overdue()
        except (OSError, ValueError):  # closed meanwhile
            return True

    def _comes_by(self, end: float) -> bool:
        while time.monotonic() < end:
            if self._watch.poll(0):
                return True
            os.sched_yield()
        return False

    @property
    def has_more(self) -> bool:
        """Whether the next message is here already."""
        return bool(self._inbox)

    def receive(self) -> str | bytes | None:
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
        """Hands what came to the protocol, and answers what the protocol answers by itself; never waits."""
        if self._protocol.state is State.CLOSED:
            return
        if self._torn:
            raise ConnectionClosedError(None, None)
        data = self._read()
        text = whole_text(data) if data and self._is_plain else None
        if text is not None:
            self._inbox.append(text)
            if not self._kept and not self._out:
                return
        with self._mutex:
            if text is None:
                self._parse(data)
            self._frame_kept()
            try:  # noqa: SIM105 (in every step)
                self._write()
            except OSError:  # the end of the stream is read in a moment
                pass
            if self._close_by == math.inf and self._protocol.close_expected():
                self._close_by = time.monotonic() + _CLOSE_S

    @property
    def _is_plain(self) -> bool:
        """Whether a frame that comes now may be read without the library: none is under way, and nothing has ended."""
        return not self._seam.within and not self._parts and self._protocol.state is State.OPEN

    def _parse(self, data: bytes | None) -> None:
        """Under the mutex."""
        self._torn = True  # a Ctrl-C inside the parser ends it for good
        if data:
            self._protocol.receive_data(data)
        elif data is not None:
            self._protocol.receive_eof()
        events = self._protocol.events_received()
        for event in events:
            self._on_event(event)
        self._seam.parsed(data or b"", events)
        self._torn = False

    def _read(self) -> bytes | None:
        try:
            return self.socket.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return b"" if self._is_overdue() else None
        except OSError:
            return b""

    def _is_overdue(self) -> bool:
        return time.monotonic() >= self._close_by

    def _on_event(self, event: Event) -> None:
        if not isinstance(event, Frame) or event.opcode not in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            return
        self._parts.append(event)
        if not event.fin:
            return
        parts, self._parts = self._parts, []
        data = b"".join(bytes(part.data) for part in parts) if len(parts) > 1 else bytes(event.data)
        if parts[0].opcode is Opcode.BINARY:
            self._inbox.append(data)
            return
        try:
            self._inbox.append(data.decode())
        except UnicodeDecodeError as error:
            if self._protocol.state is State.OPEN:
                self._protocol.fail(CloseCode.INVALID_DATA, f"{error.reason} at position {error.start}")

    # the end

    def give_up(self, reason: str) -> None:
        """Ends the connection without a word; who reads finds its end. The socket stays open for who waits on it."""
        self.broken = self.broken or reason
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def dispose(self) -> None:
        """Closes the socket; nobody may read any more."""
        self.give_up("closed")
        self.socket.close()

    def reason(self, closed: ConnectionClosed) -> str:
        """Why the connection ended, in words."""
        return self.broken or str(closed)
