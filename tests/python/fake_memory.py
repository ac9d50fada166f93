"""The memory of the TEST FAKE of gradsyncd: real memfds by real tokens over a real fd socket, and step records."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import struct
import threading
from typing import Any

_SLOT_BYTES = 4096
_MAGIC = b"gsrecrd1"


class FakeMemory:
    """Buffers by number; a number belongs to one incarnation, the memory may outlive it."""

    def __init__(self, fd_socket_path: str) -> None:
        self.buffers: dict[int, int] = {}  # buffer -> memfd
        self.record: int | None = None  # memfd of the record of the plan
        self.made = 0
        self._offers: dict[str, int] = {}  # token -> memfd to be fetched
        self._wanted: dict[str, int] = {}  # token -> buffer to be filled
        self._kept: list[int] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(fd_socket_path)
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve, name="fake-fds", daemon=True)
        self._thread.start()

    def allocate(self, size_bytes: int) -> tuple[int, str]:
        """A new buffer and its token."""
        buffer = self._number()
        self.buffers[buffer] = self._memfd(size_bytes)
        return buffer, self.offer(self.buffers[buffer])

    def adopt(self) -> tuple[int, str]:
        """A buffer whose memory comes with the token."""
        buffer, token = self._number(), secrets.token_hex(16)
        self._wanted[token] = buffer
        return buffer, token

    def release(self, buffer: int) -> None:
        """As the daemon: its pages are gone for everybody."""
        fd = self.buffers.pop(buffer)
        os.pwrite(fd, bytes(os.fstat(fd).st_size), 0)

    def offer(self, fd: int) -> str:
        """A token for a descriptor."""
        token = secrets.token_hex(16)
        self._offers[token] = fd
        return token

    def lose_everything(self) -> None:
        """The daemon is gone; a process that has mapped its memory keeps it."""
        self.buffers, self._offers, self._wanted, self.record = {}, {}, {}, None

    def new_record(self, world_size: int = 1) -> tuple[int, int]:
        """The descriptor of an empty record of a plan, and its size."""
        size = 4096 + world_size * _SLOT_BYTES
        self.record = self._memfd(size)
        os.pwrite(self.record, struct.pack("<8sIIQQQ", _MAGIC, world_size, _SLOT_BYTES, 0, 0, 0), 0)
        return self.record, size

    def note_begun(self, epoch: int, attempt: int) -> None:
        """Gradients of the attempt are about to be written."""
        self._store(16, epoch, attempt)

    def note_done(self, epoch: int, attempt: int, result: dict[str, Any]) -> None:
        """The attempt is done, with this result for rank 0."""
        self._keep(result)
        self._store(24, epoch, attempt)

    def note_voted(self, epoch: int, attempt: int, result: dict[str, Any]) -> None:
        """The node votes for the attempt, with this result for rank 0 if the others do."""
        self._keep(result)
        self._store(32, epoch, attempt)

    def _keep(self, result: dict[str, Any]) -> None:
        assert self.record is not None
        text = json.dumps(result).encode()
        os.pwrite(self.record, struct.pack("<Q", len(text)) + text, 4096)

    def _store(self, offset: int, epoch: int, attempt: int) -> None:
        assert self.record is not None
        os.pwrite(self.record, struct.pack("<Q", epoch << 32 | attempt + 1), offset)

    def stop(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(40)
        assert not self._thread.is_alive()
        for fd in self._kept:
            os.close(fd)

    def _number(self) -> int:
        self.made += 1
        return self.made

    def _memfd(self, size_bytes: int) -> int:
        fd = os.memfd_create("fake-arena", os.MFD_CLOEXEC)
        self._kept.append(fd)
        os.ftruncate(fd, size_bytes)
        return fd

    def _serve(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            with sock, contextlib.suppress(OSError):  # a client may give up at any time
                data, given, _, _ = socket.recv_fds(sock, 100, 1)
                token = data.decode().strip()
                self._kept += given
                offered, wanted = self._offers.pop(token, None), self._wanted.pop(token, None)
                if offered is not None:
                    socket.send_fds(sock, [_line({"bytes": os.fstat(offered).st_size})], [offered])
                elif wanted is not None and given:
                    self.buffers[wanted] = given[0]
                    sock.sendall(_line({"bytes": os.fstat(given[0]).st_size}))
                else:
                    data_of = {"kind": "bad_token", "retryable": False, "hint": "scripted hint"}
                    sock.sendall(_line({"error": {"code": 1, "message": "scripted", "data": data_of}}))


def _line(answer: dict[str, Any]) -> bytes:
    return json.dumps(answer).encode() + b"\n"
