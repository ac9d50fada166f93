"""A node in its role as a member: the epoch that it is in, and its steps from the ask to the answer."""

from __future__ import annotations

from model_parts import IN_EPOCH, Breach, Fault, Join, Message
from model_state import WorldState

__all__ = ["Members"]


class Members(WorldState):
    """What members do."""

    def send_up(self, index: int, *message: object) -> None:
        if index == 0:
            self.at_coordinator(0, message)
            return
        for link in self.links:
            if link.number == self.nodes[index].link and not link.cut and link.coordinator_end != "closed":
                link.up = (*link.up, message)

    def join(self, index: int) -> None:
        node = self.nodes[index]
        doubt = node.waits if node.phase == "doubt" else 0
        node.state = "joined"
        node.joined += 1
        self.send_up(
            index, "join", Join(node.incarnation, node.joined, node.epoch, doubt, node.done, node.known, node.declared)
        )

    def leave(self, index: int) -> None:
        """The epoch is over for this member: what it did not vote for has failed, what it voted for is in doubt."""
        node = self.nodes[index]
        if node.state in IN_EPOCH:
            node.epoch += 1
        node.state = "away"
        if node.waits and node.phase != "doubt":
            if node.phase == "voted" and self.fault is not Fault.LOCAL_RETRY:
                node.phase = "doubt"
            else:
                self.answer(index, "failed")

    def at_member(self, index: int, message: Message) -> None:
        node = self.nodes[index]
        match message:
            case ("end", int(epoch), int(word)) if node.epoch == epoch and node.state in IN_EPOCH:
                if node.waits == word and node.phase == "voted":
                    self.answer(index, "failed")  # the coordinator is the one to know
                self.leave(index)
                self.join(index)
            case ("end", int(epoch), int()) if node.state == "joined" and node.epoch <= epoch:
                node.epoch = epoch + 1
                self.join(index)
            case ("ruling", int(word), str(verdict)) if node.phase == "doubt" and node.waits == word:
                node.done = word if verdict == "done" else node.done
                self.answer(index, verdict)
            case ("prepare", int(epoch), tuple(roster)) if (
                epoch >= node.epoch and node.state == "joined" and node.declared
            ):
                if node.phase == "doubt":
                    raise Breach(f"node {index} is in doubt, and is not told what came of it")
                node.state, node.epoch, node.roster = "ready", epoch, roster
                self.send_up(index, "ready", epoch)
            case ("connect", int(epoch)) if node.state == "ready" and node.epoch == epoch:
                node.state = "connected"
                node.connected = (node.incarnation, self.nodes[0].incarnation, epoch)
                self.send_up(index, "connected", epoch)
            case ("begin", int(epoch)) if node.state == "connected" and node.epoch == epoch:
                self.begin(index)
            case ("decision", int(word)) if node.phase == "asked" and node.waits == word:
                node.phase = "decided"
            case ("done", int(word)) if node.phase == "voted" and node.waits == word:
                node.phase = "done"
            case ("abort", int(word)) if node.state == "begun" and self.word(node.epoch, node.attempt) == word:
                node.attempt += 1
                if node.waits == word:
                    self.answer(index, "failed")

    def begin(self, index: int) -> None:
        node = self.nodes[index]
        node.state, node.attempt, node.known = "begun", 0, True
        if self.rosters.get(node.epoch, node.roster) != node.roster:
            raise Breach(f"epoch {node.epoch} has two rosters")
        self.rosters = {node.epoch: node.roster}
        if node.applied < 0:  # a new rank takes over the weights of the others
            node.applied, node.last = max((other.applied, other.last) for other in self.nodes)
            node.slots = (node.last, 0)

    def store_voted(self, index: int, then: str) -> None:
        node = self.nodes[index]
        if self.fault is not Fault.STATE_WITH_DONE:
            node.stage(node.waits)
        node.voted = node.waits
        node.phase = then

    def vote(self, index: int, then: str) -> None:
        self.nodes[index].phase = then
        self.send_up(index, "vote", self.nodes[index].waits)

    def store_done(self, index: int, then: str) -> None:
        node = self.nodes[index]
        node.stage(node.waits)
        node.done = node.waits
        node.phase = then

    def answer_done(self, index: int) -> None:
        self.nodes[index].stage(self.nodes[index].waits)  # these two no later than this
        self.nodes[index].done = self.nodes[index].waits
        self.nodes[index].attempt += 1
        self.answer(index, "done")
