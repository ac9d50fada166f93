"""The frame that steps are made of: one whole text, written and read in one go (RFC 6455, section 5.2).

Every other frame is `websockets`' to read and to write, and so is everything after one that is not as expected.
"""

from __future__ import annotations

import struct

from websockets.frames import Frame
from websockets.protocol import Event

__all__ = ["Seam", "text_frame", "whole_text"]

_TEXT = 0x81  # the last frame of its message
_MASKED = 0x80
_TWO_BYTES, _EIGHT_BYTES = 126, 127  # of a length that needs more than seven bits
_BLANK_LINE = b"\r\n\r\n"
_SHORT, _MEDIUM, _LONG = struct.Struct("!BB4x"), struct.Struct("!BBH4x"), struct.Struct("!BBQ4x")


def text_frame(text: str) -> bytes:
    """A message of a client, masked with a key of zeros: nothing but the daemon ever sees what is on the socket."""
    data = text.encode()
    size = len(data)
    if size < _TWO_BYTES:
        return _SHORT.pack(_TEXT, _MASKED | size) + data
    if size < 1 << 16:
        return _MEDIUM.pack(_TEXT, _MASKED | _TWO_BYTES, size) + data
    return _LONG.pack(_TEXT, _MASKED | _EIGHT_BYTES, size) + data


def whole_text(data: bytes) -> str | None:
    """The text, where `data` is one frame of a server, of 4 bytes to 64 KiB, with a whole message, and nothing else."""
    if len(data) < 4 or data[0] != _TEXT:
        return None
    begin, size = 2, data[1]
    if size == _TWO_BYTES:
        begin, size = 4, data[2] << 8 | data[3]
        if size < _TWO_BYTES:
            return None
    elif size > _TWO_BYTES:
        return None
    if len(data) != begin + size:
        return None
    try:
        return data[begin:].decode()
    except UnicodeDecodeError:
        return None


class Seam:
    """Whether the library's parser is between two frames, from what it was given and what it made of that."""

    def __init__(self) -> None:
        self.within = 0  #: bytes of a frame that has not ended; 0: the next byte begins one

    def parsed(self, data: bytes, events: list[Event]) -> None:
        """The parser was given `data` and came to `events`."""
        self.within += len(data)
        for event in events:
            if isinstance(event, Frame):
                self.within -= _frame_bytes(len(event.data))
            elif self.within == len(data) and data.find(_BLANK_LINE) == len(data) - len(_BLANK_LINE):
                self.within = 0  # all that ever came is the answer to the upgrade


def _frame_bytes(size: int) -> int:
    """Of an unmasked frame at least: where the length was written longer, no seam is reached any more."""
    return size + (2 if size < _TWO_BYTES else 4 if size < 1 << 16 else 10)
