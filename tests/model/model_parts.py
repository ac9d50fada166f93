"""What the model of a job over several daemons consists of: faults, budgets, nodes, links, and what a member says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

__all__ = ["FAULTS", "IN_EPOCH", "KEPT", "Breach", "Budget", "Fault", "Join", "Link", "Message", "Node"]


class Fault(Enum):
    """A mistake to plant in the protocol."""

    NO_EPOCH_FENCE = auto()  # what says another epoch is counted for this one
    NO_INCARNATION_FENCE = auto()  # what comes over a link that was given up is still taken
    BEGIN_EARLY = auto()  # BEGIN goes out while one node is not connected
    COMMIT_WITHOUT_ONE_VOTE = auto()  # N - 1 votes are enough
    ANSWER_BEFORE_DONE = auto()  # the rank is answered, then `done` is stored
    VOTE_BEFORE_VOTED = auto()  # the vote is sent, then `voted` is stored
    DOUBT_IS_FAILURE = auto()  # the coordinator takes an attempt in doubt as failed, though one node has `done`
    SUPERSEDED_JOIN = auto()  # a JOIN that was overtaken by that of a later life is taken
    DUPLICATE_ASK = auto()  # asks are counted, not noted by node
    LOCAL_RETRY = auto()  # a node that voted and loses its link calls the attempt failed
    STATE_WITH_DONE = auto()  # what policies remember is stored with `done`, not before the vote
    DOUBT_WAITS_FOR_RANK = auto()  # a node in doubt is ruled on when its lost rank is replaced
    CROSSED_JOIN = auto()  # a JOIN that crossed with the PREPARE of the one before is taken with what it declares
    NO_ATTEMPT_FENCE = auto()  # what says another attempt of this epoch is counted for this one
    ABORT_IN_EPOCH = auto()  # where gradients travel, an attempt fails and the epoch goes on


class Breach(Exception):
    """An invariant does not hold."""


@dataclass(frozen=True)
class Budget:
    """How much may happen."""

    nodes: int = 2
    steps: int = 1
    kills: int = 0  # a daemon goes; its rank and the record stay
    losses: int = 0  # a node goes with its rank and its record
    cuts: int = 0  # a link loses what is on its way, and carries nothing more
    aborts: int = 0  # the coordinator ends an attempt: a deadline, ranks that disagree
    repeats: int = 0  # a rank makes its call again
    leaves: int = 0  # a node gives the epoch up by itself, because another rank of it is lost
    echoes: int = 0  # a message arrives a second time, at any later moment
    travels: bool = False  # gradients travel, over connections of the epoch: an attempt that fails ends it


class Node:
    """A daemon in its role as a member, its rank, and the record that the rank keeps alive."""

    def __init__(self) -> None:
        self.link = 0
        self.up = True
        self.incarnation = 1
        self.voted = self.done = 0  # the words of the record
        self.applied = 0  # steps that the rank took; -1: it is new, and takes over what others have
        self.waits = 0  # the word of the attempt in which the rank waits; 0: in none
        self.state = "away"  # away, joined, ready, connected, begun
        self.epoch = 0  # the one it is in, or the least that the next may have; 0: it knows none
        self.attempt = 0
        self.phase = "idle"  # idle, asked, decided, storing, voted, doubt, done, answering
        self.known = True  # its rank can say what the record has
        self.declared = True  # no rank of it is lost
        self.connected = (0, 0, 0)  # own incarnation, that of the coordinator, epoch
        self.roster: tuple[int, ...] = ()
        self.stopped = False  # its rank was told step_in_doubt
        self.joined = 0  # how often, over the link that it has
        self.last = 0  # the word of the step that its rank took last
        self.slots = (0, 0)  # the file of its policies: the states after these words

    def stage(self, word: int) -> None:
        """The state after the attempt takes the place of the one that is not current."""
        self.slots = (self.last, word)

    def copy(self) -> Node:
        new = Node.__new__(Node)
        new.__dict__.update(self.__dict__)
        return new

    def key(self, order: dict[int, int]) -> tuple[object, ...]:
        _, *rest = self.__dict__.values()
        return (order[self.link], *rest)


Message = tuple[object, ...]
FAULTS = (
    "is killed",
    "is lost",
    "is cut",
    "aborts",
    "again",
    "leaves",
    "last time",
    "is replaced",
)  # events that need not happen
IN_EPOCH = ("ready", "connected", "begun")
KEPT = 3  # attempts that are remembered; fewer can be open at a time


class Link:
    """One connection of a member to the coordinator. Its number is that of the challenge which the coordinator gave."""

    def __init__(self, number: int, member: int, coordinator: int) -> None:
        self.number = number
        self.member = member
        self.coordinator = coordinator  # the incarnation there
        self.up: tuple[Message, ...] = ()
        self.down: tuple[Message, ...] = ()
        self.echoes_up: tuple[Message, ...] = ()  # they were delivered once
        self.echoes_down: tuple[Message, ...] = ()
        self.member_end = self.coordinator_end = "open"  # open, closed; ignored: given up, but still read (a fault)
        self.cut = False

    def copy(self) -> Link:
        new = Link.__new__(Link)
        new.__dict__.update(self.__dict__)
        return new

    def key(self, order: dict[int, int]) -> tuple[object, ...]:
        _, *rest = self.__dict__.values()
        return (order[self.number], *rest)


@dataclass(frozen=True)
class Join:
    """What a member says of itself when it joins, and again after each end of an epoch."""

    incarnation: int
    count: int  # how often it joined over this link
    epoch: int
    doubt: int
    done: int
    known: bool
    declared: bool
