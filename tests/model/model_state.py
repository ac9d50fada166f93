"""A state of all daemons, ranks and links, and the verdicts that ranks were given."""

from __future__ import annotations

from model_parts import KEPT, Breach, Budget, Fault, Join, Link, Message, Node

__all__ = ["WorldState"]


class WorldState:
    """What may differ between two states."""

    def __init__(self, budget: Budget, fault: Fault | None) -> None:
        self.budget = budget
        self.fault = fault
        self.nodes = [Node() for _ in range(budget.nodes)]
        self.links: list[Link] = []
        self.links_made = 0
        self.left = [
            budget.kills, budget.losses, budget.cuts, budget.aborts, budget.repeats, budget.leaves, budget.echoes
        ]  # fmt: skip
        self.verdicts: dict[int, tuple[str, ...]] = {}  # by word and node
        self.asked: dict[int, int] = {}  # by word: the nodes whose ranks asked, a bit each
        self.rosters: dict[int, tuple[int, ...]] = {}  # by epoch
        self.spoiled: set[int] = set()  # the attempt that was aborted last
        self._forget_coordinator()

    def _forget_coordinator(self) -> None:
        self.state = "gather"  # gather, prepare, connect, begun
        self.bound = [0] * self.budget.nodes  # by node: the link that counts
        self.newest = [(0, 0)] * self.budget.nodes  # by node: link and count of the last JOIN, also when it has ended
        self.joins: list[Join | None] = [None] * self.budget.nodes
        self.told = [0] * self.budget.nodes  # by node: the last epoch that was prepared over the link that counts
        self.seen = [0] * self.budget.nodes  # by node: the latest incarnation that joined
        self.got = 0  # READY or CONNECTED, a bit per node
        self.epoch = self.attempt = 0
        self.asks = self.ask_count = self.votes = 0
        self.commit = ""  # "", decided, stored, told

    def key(self) -> tuple[object, ...]:
        """Equal for states with equal futures: of link numbers only the order matters."""
        numbers = {0, *self.bound, *(number for number, _ in self.newest), *(link.number for link in self.links)}
        numbers.update(node.link for node in self.nodes)
        order = {number: place for place, number in enumerate(sorted(numbers))}
        return (
            tuple(node.key(order) for node in self.nodes),
            tuple(link.key(order) for link in self.links),
            tuple(order[number] for number in self.bound),
            tuple((order[number], count) for number, count in self.newest),
            tuple(self.left), tuple(self.verdicts.items()), tuple(self.asked.items()), tuple(self.rosters.items()),
            self.state, tuple(self.joins), tuple(self.told), tuple(self.seen), self.got, self.epoch, self.attempt,
            self.asks, self.ask_count, self.votes, self.commit, tuple(self.spoiled),
        )  # fmt: skip

    # ---- words and verdicts

    @property
    def everyone(self) -> int:
        return (1 << self.budget.nodes) - 1

    @staticmethod
    def word(epoch: int, attempt: int) -> int:
        return epoch * 16 + attempt + 1

    def answer(self, index: int, verdict: str) -> None:
        """The rank is answered: it applied the step, or computes it again."""
        node = self.nodes[index]
        told = list(self.verdicts.get(node.waits, ("",) * self.budget.nodes))
        others = {one for one in told if one}
        if verdict == "doubt":
            node.stopped = True
        else:
            if others - {verdict}:
                raise Breach(f"node {index} answers {verdict}, another answered {others.pop()} for the same attempt")
            told[index] = verdict
            self.verdicts = {**self.verdicts, node.waits: tuple(told)}
            self.verdicts = dict(sorted(self.verdicts.items())[-KEPT:])
            if verdict == "done":
                node.applied += 1
                node.last = node.waits
                if node.last not in node.slots:
                    raise Breach(f"what the policies of node {index} remembered is lost")
        node.waits = 0
        node.phase = "idle"

    def at_coordinator(self, index: int, message: Message, number: int = 0) -> None:
        """What a member says, over the link with that number; 0: the member of the coordinator's node."""
        raise NotImplementedError
