"""A job over several daemons, as docs/adr/0030 says it, small enough to try every order of events.

One rank per node takes part, and another one may be lost; node 0 is the coordinator's. What crosses a link is in order,
may come late, and is lost with the link. A daemon may be killed between any two stores or messages; the words of its
step record (`voted`, `done`) live as long as its rank. `explore` visits every state that a budget of faults allows, and
returns the first breach:

- every node that answers an attempt gives the same verdict, and only if all nodes contributed to what was decided;
- an epoch begins when each node of its roster has said that it is connected in it, and has one roster;
- what policies remember is there for every rank that goes on;
- no roster has an incarnation that was superseded; no epoch number is used for two, and none ends without a fault;
- where gradients travel, no attempt begins in an epoch in which one failed: its connections are not empty;
- a node in doubt waits for no rank that was lost, where the record of the coordinator is known;
- where nothing is left to happen, every rank took all its steps, or was told that the outcome cannot be known.

A `Fault` is what a wrong implementation would do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from model_coordinator import Coordinator
from model_parts import FAULTS, IN_EPOCH, KEPT, Breach, Budget, Fault, Link, Message

__all__ = ["Breach", "Budget", "Explored", "Fault", "explore"]


@dataclass(frozen=True)
class Explored:
    states: int
    breach: str | None
    doubts: int = 0  # states in which some rank was told that nobody can know
    trace: tuple[str, ...] = ()


class World(Coordinator):
    """A state of everything, and what may happen in it."""

    def copy(self) -> World:
        new = World.__new__(World)
        new.__dict__.update(self.__dict__)
        new.nodes = [node.copy() for node in self.nodes]
        new.links = [link.copy() for link in self.links]
        for name in ("left", "bound", "newest", "joins", "told", "seen"):
            setattr(new, name, list(getattr(self, name)))
        new.spoiled = set(self.spoiled)
        for name in ("verdicts", "asked", "rosters"):
            setattr(new, name, dict(getattr(self, name)))
        return new

    def urgent(self, index: int) -> Callable[[World], None] | None:
        """The next store, message or answer of a daemon in the middle of an event: only its end can come before."""
        node = self.nodes[index]
        late = self.fault is Fault.VOTE_BEFORE_VOTED
        early_answer = self.fault is Fault.ANSWER_BEFORE_DONE
        if index == 0 and self.commit:
            return World.commit_on
        match node.phase:
            case "decided":
                return (lambda w: w.vote(index, "storing")) if late else (lambda w: w.store_voted(index, "storing"))
            case "storing":
                return (lambda w: w.store_voted(index, "voted")) if late else (lambda w: w.vote(index, "voted"))
            case "done":
                return (
                    (lambda w: w.answer_done(index)) if early_answer else (lambda w: w.store_done(index, "answering"))
                )
            case "answering":
                return lambda w: w.answer_done(index)
            case _:
                return None

    def events(self) -> Iterator[tuple[str, Callable[[World], None]]]:
        yield from self.kills()
        steps = [(index, self.urgent(index)) for index, node in enumerate(self.nodes) if node.up]
        stores = [(index, step) for index, step in steps if step]
        if stores:
            index, step = stores[0]
            yield f"node {index} goes on", step
            return
        for index, node in enumerate(self.nodes):
            if not node.up:
                yield f"node {index} restarts", partial(World.restart, index=index)
            elif index and node.link == 0 and self.nodes[0].up:
                yield f"node {index} connects", partial(World.connect, index=index)
            if node.up and node.state == "begun":
                if node.phase == "idle" and not node.stopped and node.applied < self.budget.steps:
                    yield f"rank {index} asks", partial(World.ask, index=index)
                elif node.phase == "asked" and self.left[4]:
                    yield f"rank {index} asks again", partial(World.ask_again, index=index)
            if self.left[5] and node.up and node.state in ("joined", *IN_EPOCH) and node.declared:
                yield f"node {index} leaves", partial(World.give_up, index=index)
            if not node.declared:
                yield f"the lost rank of node {index} is replaced", partial(World.replace_rank, index=index)
        if self.left[3] and self.nodes[0].up and self.state == "begun" and self.asks:
            yield "the coordinator aborts", World.abort
        for place, link in enumerate(self.links):
            yield from self.link_events(place, link)

    def kills(self) -> Iterator[tuple[str, Callable[[World], None]]]:
        for index, node in enumerate(self.nodes):
            if node.up and self.left[0]:
                yield f"node {index} is killed", partial(World.kill, index=index, budget=0)
            if self.left[1]:
                yield f"node {index} is lost", partial(World.kill, index=index, budget=1)

    def link_events(self, place: int, link: Link) -> Iterator[tuple[str, Callable[[World], None]]]:
        name = f"link {link.number} of node {link.member}"
        alive = self.nodes[0].up and self.nodes[0].incarnation == link.coordinator
        if link.up and alive and link.coordinator_end != "closed":
            yield f"{name} up: {link.up[0]}", partial(World.deliver_up, place=place, echo=False)
            if self.left[6]:
                yield (
                    f"{name} up: {link.up[0]}, not for the last time",
                    partial(World.deliver_up, place=place, echo=True),
                )
        if link.echoes_up and alive and link.coordinator_end != "closed":
            yield f"{name} up, once more: {link.echoes_up[0]}", partial(World.deliver_echo, place=place, up=True)
        if link.down and link.member_end != "closed":
            yield f"{name} down: {link.down[0]}", partial(World.deliver_down, place=place, echo=False)
            if self.left[6]:
                yield (
                    f"{name} down: {link.down[0]}, not for the last time",
                    partial(World.deliver_down, place=place, echo=True),
                )
        if link.echoes_down and link.member_end != "closed":
            yield f"{name} down, once more: {link.echoes_down[0]}", partial(World.deliver_echo, place=place, up=False)
        if link.member_end == "open" and (link.cut or not alive or link.coordinator_end != "open"):
            yield f"{name} ends at the member", partial(World.end_at_member, place=place)
        if link.coordinator_end == "open" and alive and (link.cut or link.member_end != "open"):
            yield f"{name} ends at the coordinator", partial(World.end_at_coordinator, place=place)
        if self.left[2] and not link.cut and link.member_end == "open" and link.coordinator_end == "open":
            yield f"{name} is cut", partial(World.cut, place=place)

    def deliver_up(self, place: int, *, echo: bool) -> None:
        link = self.links[place]
        message, link.up = link.up[0], link.up[1:]
        if echo:
            self.left[6] -= 1
            link.echoes_up = (*link.echoes_up, message)
        self.take_up(link, message)

    def take_up(self, link: Link, message: Message) -> None:
        counts = link.number == self.bound[link.member] or message[0] == "join"
        if counts or self.fault is Fault.NO_INCARNATION_FENCE:
            self.at_coordinator(link.member, message, link.number)

    def deliver_down(self, place: int, *, echo: bool) -> None:
        link = self.links[place]
        message, link.down = link.down[0], link.down[1:]
        if echo:
            self.left[6] -= 1
            link.echoes_down = (*link.echoes_down, message)
        self.at_member(link.member, message)

    def deliver_echo(self, place: int, *, up: bool) -> None:
        link = self.links[place]
        if up:
            message, link.echoes_up = link.echoes_up[0], link.echoes_up[1:]
            self.take_up(link, message)
        else:
            message, link.echoes_down = link.echoes_down[0], link.echoes_down[1:]
            self.at_member(link.member, message)

    def end_at_member(self, place: int) -> None:
        link = self.links[place]
        ignored = self.fault is Fault.NO_INCARNATION_FENCE
        link.member_end = "ignored" if ignored else "closed"
        link.down, link.echoes_down = (link.down, link.echoes_down) if ignored else ((), ())
        if self.nodes[link.member].link == link.number:
            self.nodes[link.member].link = 0
            self.leave(link.member)
        self.drop_links()

    def end_at_coordinator(self, place: int) -> None:
        link = self.links[place]
        self.close_at_coordinator(link.number)
        if self.bound[link.member] == link.number:
            self.bound[link.member] = 0
            self.joins[link.member] = None
            if self.state != "gather":
                self.end_epoch()
        self.drop_links()

    def cut(self, place: int) -> None:
        self.left[2] -= 1
        link = self.links[place]
        link.cut = True
        link.up = link.down = ()

    def connect(self, index: int) -> None:
        self.links_made += 1
        self.links.append(Link(self.links_made, index, self.nodes[0].incarnation))
        self.nodes[index].link, self.nodes[index].joined = self.links_made, 0
        self.join(index)

    def ask(self, index: int) -> None:
        node = self.nodes[index]
        node.waits = self.word(node.epoch, node.attempt)
        if self.budget.travels and any(word // 16 == node.epoch and word < node.waits for word in self.spoiled):
            raise Breach("gradients travel over connections that have half of an attempt on the way")
        node.phase = "asked"
        self.asked = {**self.asked, node.waits: self.asked.get(node.waits, 0) | 1 << index}
        self.asked = dict(sorted(self.asked.items())[-KEPT:])
        self.send_up(index, "ask", node.waits)

    def ask_again(self, index: int) -> None:
        self.left[4] -= 1
        self.send_up(index, "ask", self.nodes[index].waits)

    def give_up(self, index: int) -> None:
        """A rank is lost, and may never be replaced."""
        self.left[5] -= 1
        self.nodes[index].declared = False
        if index:
            self.leave(index)
            self.join(index)
        elif self.state != "gather":
            self.end_epoch()

    def replace_rank(self, index: int) -> None:
        node = self.nodes[index]
        node.declared = True
        if index == 0:
            self.prepare_if_all_joined()
        elif node.up and node.state == "joined":
            self.join(index)

    def abort(self) -> None:
        self.left[3] -= 1
        word = self.word(self.epoch, self.attempt)
        self.spoiled = {word}
        if self.budget.travels and self.fault is not Fault.ABORT_IN_EPOCH:
            self.end_epoch()
            return
        self.attempt += 1
        self.asks = self.ask_count = self.votes = 0
        self.send_down("abort", word)
        self.at_member(0, ("abort", word))

    def kill(self, index: int, budget: int) -> None:
        self.left[budget] -= 1
        node = self.nodes[index]
        node.up = False
        if budget == 1:  # and its rank, with the record
            node.voted = node.done = node.waits = 0
            node.applied, node.known, node.stopped = -1, False, False
            node.last, node.slots = 0, (0, 0)
        node.state, node.epoch, node.link, node.attempt, node.roster = "away", 0, 0, 0, ()
        node.phase = "idle"
        for link in self.links:
            if index == 0:
                link.up, link.echoes_up, link.coordinator_end = (), (), "closed"
            elif link.member == index:
                link.down, link.echoes_down, link.member_end = (), (), "closed"
        if index == 0:
            self._forget_coordinator()
        self.drop_links()

    def restart(self, index: int) -> None:
        """The rank reads the record of the daemon that is gone, then declares at the next one."""
        node = self.nodes[index]
        node.up = True
        node.incarnation += 1
        if node.last not in node.slots:
            raise Breach(f"what the policies of node {index} remembered is lost")
        if node.waits and node.done == node.waits:
            self.answer(index, "done")
        elif node.waits and node.voted == node.waits:
            node.phase = "doubt"
            if index == 0:  # the coordinator has not stored `done`, so it told nobody
                self.answer(0, "failed")
        elif node.waits:
            self.answer(index, "failed")

    def drop_links(self) -> None:
        self.links = [link for link in self.links if not self.over(link)]

    @staticmethod
    def over(link: Link) -> bool:
        return link.member_end == "closed" and link.coordinator_end == "closed"

    def check_end(self) -> None:
        """Nothing can happen any more, faults apart."""
        for index, node in enumerate(self.nodes):
            if node.phase == "doubt" and self.nodes[0].known:
                raise Breach(f"node {index} waits for a ruling that the coordinator could give")
        if not all(node.declared for node in self.nodes):
            return
        for index, node in enumerate(self.nodes):
            if not node.stopped and node.applied != self.budget.steps and not any(n.stopped for n in self.nodes):
                raise Breach(f"rank {index} waits for ever, after {node.applied} steps")


def explore(budget: Budget, fault: Fault | None = None, most_states: int = 2_000_000) -> Explored:
    """Visits every state, those with fewer events first."""
    first = World(budget, fault)
    came: dict[tuple[object, ...], tuple[tuple[object, ...] | None, str]] = {first.key(): (None, "start")}
    queue = deque([(first, first.key())])

    def trace(key: tuple[object, ...] | None, last: str) -> tuple[str, ...]:
        lines = [last]
        while key is not None:
            key, line = came[key]
            lines.append(line)
        return tuple(reversed(lines))

    doubts = 0
    while queue:
        world, key = queue.popleft()
        doubts += any(node.stopped for node in world.nodes)
        quiet = True
        for name, event in world.events():
            quiet = quiet and name.endswith(FAULTS)
            following = world.copy()
            try:
                event(following)
            except Breach as breach:
                return Explored(len(came), str(breach), trace=trace(key, name))
            next_key = following.key()
            if next_key not in came:
                came[next_key] = (key, name)
                queue.append((following, next_key))
        if quiet:
            try:
                world.check_end()
            except Breach as breach:
                return Explored(len(came), str(breach), trace=trace(key, "the end"))
        if len(came) > most_states:
            raise RuntimeError(f"more than {most_states} states")
    return Explored(len(came), None, doubts)
