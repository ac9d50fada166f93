"""A proxy between a member and its coordinator, which does to a link what a network does: delay, silence, a cut.

Up is from the member to the coordinator. What is held is kept and goes on later, as TCP sends again what was lost, and
so are the ends of connections. Both ends are on loopback, where each sees the other as 127.0.0.1.
"""

from __future__ import annotations

import asyncio
import collections
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any, Literal

from daemon import DEADLINE_S

Direction = Literal["up", "down"]
UP: Direction = "up"
DOWN: Direction = "down"
_OTHER: dict[Direction, Direction] = {UP: DOWN, DOWN: UP}
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER, with which close() sends a reset


class Link:
    """One connection of a member, and the one to the coordinator that continues it. Belongs to the proxy's thread."""

    def __init__(self, proxy: Proxy, trap: bool) -> None:
        self._proxy = proxy
        self._from: dict[Direction, asyncio.Transport] = {}  # where the bytes of a direction come from
        self._waiting: dict[Direction, collections.deque[bytes]] = {UP: collections.deque(), DOWN: collections.deque()}
        self._over: set[Direction] = set()  # the sender has closed
        self._trap = trap
        self._cut_off = False  # nothing passes any more
        self.carries_data = False  #: gradients, and no messages
        self.left: int | None = None  #: bytes of gradients that still pass, both ways together; None: all
        self.caught = threading.Event()  #: the trap has what followed the handshake
        self.ended = threading.Event()  #: the coordinator has closed its end

    def opened(self, way: Direction, transport: asyncio.Transport) -> None:
        self._from[way] = transport
        for each in (UP, DOWN):
            self.flush(each)

    def came(self, way: Direction, data: bytes) -> None:
        if way == UP and data.startswith(b"GET /peer/data "):
            self.carries_data = True
            if self._proxy.refuses_data:
                self.reset(UP, DOWN)
        if self._trap and way == UP and not data.startswith(b"GET "):
            self.caught.set()
        self._waiting[way].append(data)
        self._soon(way)

    def over(self, way: Direction) -> None:
        if way == DOWN:
            self.ended.set()
        self._over.add(way)
        if self._cut_off:
            self._from[way].close()
        else:
            self._soon(way)

    def _soon(self, way: Direction) -> None:
        delay_s = self._proxy.delay_s + (self._proxy.data_delay_s if self.carries_data else 0.0)
        if delay_s:
            asyncio.get_running_loop().call_later(delay_s, self.flush, way)
        else:
            self.flush(way)

    def flush(self, way: Direction) -> None:
        target = self._from.get(_OTHER[way])
        if target is None or self._cut_off or self._proxy.holds(way, data=self.carries_data):
            return
        waiting = self._waiting[way]
        if target.is_closing() or (self.carries_data and way in self._proxy.swallowed):
            waiting.clear()  # what comes for an end that is gone reaches nobody
        while waiting and self.left != 0 and not (way == UP and self.caught.is_set()):
            data = waiting.popleft()
            if self.left is not None:
                if len(data) > self.left:
                    waiting.appendleft(data[self.left :])
                    data = data[: self.left]
                self.left -= len(data)
                if self.left == 0:
                    self._proxy.full.set()
            target.write(data)
        if way in self._over and not waiting:
            target.close()
            self._from[way].close()

    def put(self, way: Direction, data: bytes) -> None:
        """Bytes that nobody sent, before those that wait."""
        self._waiting[way].appendleft(data)

    def release(self) -> None:
        """What the trap has goes on. The end of the member does not: the coordinator is to close this link."""
        self._trap = False
        self.caught.clear()
        self._over.discard(UP)
        self.flush(UP)

    def reset(self, *ends: Direction) -> None:
        """Those ends hear a reset; the others hear nothing more."""
        self._cut_off = True
        for end in ends:
            if end in self._from and not self._from[end].is_closing():
                self._from[end].get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                self._from[end].abort()


class _End(asyncio.Protocol):
    def __init__(self, link: Link, way: Direction, on_made: Callable[[], None] | None = None) -> None:
        self._link, self._way, self._on_made = link, way, on_made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._link.opened(self._way, transport)
        if self._on_made is not None:
            self._on_made()

    def data_received(self, data: bytes) -> None:
        self._link.came(self._way, data)

    def eof_received(self) -> bool:
        self._link.over(self._way)
        return True  # it is closed when its other end is

    def connection_lost(self, error: Exception | None) -> None:
        self._link.over(self._way)


class Proxy:
    """Listens at `address`, for as long as its context lasts. Its methods are for the test's thread."""

    def __init__(self, coordinator: str) -> None:
        host, port = coordinator.rsplit(":", 1)
        self._coordinator = (host, int(port))
        self.delay_s = 0.0
        self.data_delay_s = 0.0  #: of gradients, besides
        self._links: list[Link] = []
        self._next: Link | None = None
        self._held: set[Direction] = set()
        self._held_messages: set[Direction] = set()
        self._holds_data = False
        self.swallowed: set[Direction] = set()  #: gradients that come this way are taken, and go nowhere
        self.full = threading.Event()  #: a data connection has carried what may pass
        self.refuses_data = False  #: data connections that are opened end at once
        self._refuses = False
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Proxy:
        self._thread.start()

        async def listen() -> str:
            self._server = await self._loop.create_server(self._accept, "127.0.0.1", 0)
            return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

        self.address: str = asyncio.run_coroutine_threadsafe(listen(), self._loop).result(DEADLINE_S)
        return self

    def __exit__(self, *error: object) -> None:
        self._server.close()
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_S)
        self._loop.close()

    def holds(self, way: Direction, *, data: bool) -> bool:
        return way in self._held or (self._holds_data if data else way in self._held_messages)

    # what a test does to the link

    def cut(self) -> None:
        """Both ends of each link hear a reset, and nobody connects until `heal`."""

        def cut() -> None:
            self._refuses = True
            self._reset_all(UP, DOWN)

        self._do(cut)

    def hold(self, *ways: Direction) -> None:
        """Nothing passes these ways until `heal`, neither on links that are there nor on later ones."""
        self._do(lambda: self._held.update(ways))

    def hold_messages(self, *ways: Direction) -> None:
        """No message passes these ways until `heal`; gradients do."""
        self._do(lambda: self._held_messages.update(ways))

    def hold_data(self) -> None:
        """No gradient passes until `heal`; messages do."""

        def hold() -> None:
            self._holds_data = True

        self._do(hold)

    def hold_data_after(self, passing: int) -> None:
        """So many bytes of gradients pass on each data connection, and then none until `heal`; messages do."""

        def hold() -> None:
            self.full.clear()
            for link in self._data():
                link.left = passing

        self._do(hold)

    def swallow_data(self, *ways: Direction) -> None:
        """Gradients that come these ways are acknowledged and go nowhere, until `heal`; messages pass."""
        self._do(lambda: self.swallowed.update(ways))

    def feed_data(self, way: Direction, data: bytes) -> None:
        """Bytes that nobody sent come this way on every data connection, before what is held."""

        def feed() -> None:
            for link in self._data():
                link.put(way, data)

        self._do(feed)

    def cut_data(self) -> None:
        """Both ends of each data connection hear a reset; others may be opened at once, and messages pass."""

        def cut() -> None:
            for link in self._data():
                link.reset(UP, DOWN)

        self._do(cut)

    def data_links(self) -> int:
        """How many data connections there have been."""
        return int(self._do(lambda: sum(link.carries_data for link in self._links)))

    def reset(self, end: Direction) -> None:
        """One end of each link hears a reset, the other hears nothing more; another link may be opened at once."""
        self._do(lambda: self._reset_all(end))

    def cut_and_trap_next(self) -> Link:
        """A cut. The link that follows gets through its handshake, and what the member says there waits."""

        def cut() -> Link:
            self._next = Link(self, trap=True)
            self._reset_all(UP, DOWN)
            return self._next

        trapped: Link = self._do(cut)
        return trapped

    def release(self, link: Link) -> None:
        self._do(link.release)

    def heal(self) -> None:
        def heal() -> None:
            self._refuses = self.refuses_data = False
            self._held.clear()
            self._held_messages.clear()
            self._holds_data = False
            self.swallowed.clear()
            for link in self._links:
                link.left = None
                link.flush(UP)
                link.flush(DOWN)

        self._do(heal)

    # on its thread

    def _data(self) -> list[Link]:
        return [link for link in self._links if link.carries_data]

    def _do(self, what: Callable[[], Any]) -> Any:
        async def do() -> Any:
            return what()

        return asyncio.run_coroutine_threadsafe(do(), self._loop).result(DEADLINE_S)

    def _reset_all(self, *ends: Direction) -> None:
        for link in self._links:
            link.reset(*ends)

    def _accept(self) -> asyncio.Protocol:
        link, self._next = self._next or Link(self, trap=False), None
        self._links.append(link)
        return _End(link, UP, lambda: self._go_on(link))

    def _go_on(self, link: Link) -> None:
        if self._refuses:
            link.reset(UP)
            return
        task = self._loop.create_task(self._connect(link))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, link: Link) -> None:
        try:
            await self._loop.create_connection(lambda: _End(link, DOWN), *self._coordinator)
        except OSError:
            link.reset(UP)
