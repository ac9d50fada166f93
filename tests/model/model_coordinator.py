"""The coordinator: which joins count, what it rules, and how an epoch forms, commits and ends."""

from __future__ import annotations

from dataclasses import replace

from model_members import Members
from model_parts import Breach, Fault, Join, Message

__all__ = ["Coordinator"]


class Coordinator(Members):
    """What the coordinator does; its own node is number 0."""

    def send_down(self, *message: object) -> None:
        for index in range(1, self.budget.nodes):
            self.send_to(index, *message)

    def send_to(self, index: int, *message: object) -> None:
        for link in self.links:
            if link.number == self.bound[index] != 0 and not link.cut and link.member_end != "closed":
                link.down = (*link.down, message)

    def at_coordinator(self, index: int, message: Message, number: int = 0) -> None:
        here = self.word(self.epoch, self.attempt)
        match message:
            case ("join", Join() as join):
                self.on_join(index, join, number)
            case ("ready", int(epoch)) if self.state == "prepare" and self.of_epoch(epoch):
                self.got |= 1 << index
                if self.got == self.everyone:
                    self.state, self.got = "connect", 0
                    self.send_down("connect", self.epoch)
                    self.at_member(0, ("connect", self.epoch))
            case ("connected", int(epoch)) if self.state == "connect" and self.of_epoch(epoch):
                self.got |= 1 << index
                missing = self.budget.nodes - self.got.bit_count()
                if missing == 0 or (missing == 1 and self.fault is Fault.BEGIN_EARLY):
                    self.begin_all()
            case ("ask", int(word)) if self.state == "begun" and self.of_attempt(word, here):
                fresh = not self.asks >> index & 1
                self.asks |= 1 << index
                self.ask_count += fresh or self.fault is Fault.DUPLICATE_ASK
                if self.ask_count == self.budget.nodes and self.votes == 0:
                    if self.asked.get(here, 0) != self.everyone:
                        raise Breach("a decision is taken without the contribution of every node")
                    self.send_down("decision", here)
                    self.at_member(0, ("decision", here))
            case ("vote", int(word)) if self.state == "begun" and self.of_attempt(word, here) and not self.commit:
                self.votes |= 1 << index
                missing = self.budget.nodes - self.votes.bit_count()
                if missing == 0 or (missing == 1 and self.fault is Fault.COMMIT_WITHOUT_ONE_VOTE):
                    self.commit = "decided"

    def of_epoch(self, epoch: int) -> bool:
        return epoch == self.epoch or self.fault is Fault.NO_EPOCH_FENCE

    def of_attempt(self, word: int, here: int) -> bool:
        if word == here:
            return True
        same_epoch = word // 16 == here // 16
        return self.fault is (Fault.NO_ATTEMPT_FENCE if same_epoch else Fault.NO_EPOCH_FENCE)

    def on_join(self, index: int, join: Join, number: int) -> None:
        if (number, join.count) <= self.newest[index] and self.fault is not Fault.SUPERSEDED_JOIN:
            if number < self.newest[index][0]:
                self.close_at_coordinator(number)
            return
        self.seen[index] = max(self.seen[index], join.incarnation)
        if number != self.bound[index]:
            self.close_at_coordinator(self.bound[index])
            self.bound[index] = self.told[index] = 0
        if self.told[index] and join.epoch <= self.told[index] and self.fault is not Fault.CROSSED_JOIN:
            join = replace(join, declared=False)  # behind END comes another
        if self.state != "gather":
            self.end_epoch()
        self.bound[index], self.newest[index] = number, (number, join.count)
        self.joins[index] = join
        self.rule(all_joined=False)
        self.prepare_if_all_joined()

    def close_at_coordinator(self, number: int) -> None:
        for link in self.links:
            if link.number == number and link.coordinator_end == "open":
                ignored = self.fault is Fault.NO_INCARNATION_FENCE
                link.coordinator_end = "ignored" if ignored else "closed"
                link.up, link.echoes_up = (link.up, link.echoes_up) if ignored else ((), ())

    def end_epoch(self) -> None:
        self.state = "gather"
        self.joins = [None] * self.budget.nodes
        here, own = self.word(self.epoch, self.attempt), self.nodes[0]
        self.send_down("end", self.epoch, here)  # nothing is being committed: that ends before anything else is read
        if own.waits == here and own.phase == "voted":
            self.answer(0, "failed")
        self.leave(0)
        self.nodes[0].state = "joined"

    def prepare_if_all_joined(self) -> None:
        declared = all(join and join.declared for join in self.joins[1:]) and self.nodes[0].declared
        if self.state != "gather" or not declared:
            return
        self.rule(all_joined=True)
        own = self.nodes[0]
        joins = [join for join in self.joins[1:] if join]
        roster = (own.incarnation, *(join.incarnation for join in joins))
        if any(incarnation < seen for incarnation, seen in zip(roster[1:], self.seen[1:], strict=True)):
            raise Breach("a roster has an incarnation that was superseded")
        self.epoch = max(own.epoch, *(join.epoch for join in joins)) or 10 * own.incarnation
        if self.epoch % 10 == 9:
            raise Breach("epochs end one after the other, for ever")
        self.told = [self.epoch] * self.budget.nodes
        self.state, self.got = "prepare", 0
        self.asks = self.ask_count = self.votes = self.attempt = 0
        own.state = "joined"
        self.send_down("prepare", self.epoch, roster)
        self.at_member(0, ("prepare", self.epoch, roster))

    def rule(self, *, all_joined: bool) -> None:
        """Tells nodes in doubt what came of their attempt, as soon as that is known."""
        own = self.nodes[0]
        known = [join for join in self.joins if join]
        for index, join in enumerate(self.joins):
            if join is None or join.doubt == 0:
                continue
            if not join.declared and self.fault is Fault.DOUBT_WAITS_FOR_RANK:
                continue
            lies = self.fault is Fault.DOUBT_IS_FAILURE
            if not lies and (own.done == join.doubt or any(other.done == join.doubt for other in known)):
                verdict = "done"
            elif own.known or lies:
                # This node stores `done` before it tells anybody: what its record does not have, nobody has.
                verdict = "failed"
            elif all_joined:
                verdict = "doubt"
            else:
                continue
            self.joins[index] = replace(join, doubt=0)
            self.send_to(index, "ruling", join.doubt, verdict)

    def begin_all(self) -> None:
        roster = self.nodes[0].roster
        for index, node in enumerate(self.nodes):
            if node.connected != (roster[index], self.nodes[0].incarnation, self.epoch):
                raise Breach(f"epoch {self.epoch} begins, but node {index} is not connected in it")
        self.state = "begun"
        self.send_down("begin", self.epoch)
        self.at_member(0, ("begin", self.epoch))

    def commit_on(self) -> None:
        """The coordinator stores `done`, tells the members, answers its rank, in this order."""
        word = self.word(self.epoch, self.attempt)
        early = self.fault is Fault.ANSWER_BEFORE_DONE
        own = self.nodes[0]
        if self.commit == "decided" and early:
            self.answer(0, "done")
            self.commit = "stored"
        elif self.commit == "decided":
            own.stage(word)
            own.done = word
            self.commit = "stored"
        elif self.commit == "stored":
            own.done = word
            self.send_down("done", word)
            self.commit = "told"
        else:
            if own.waits == word:
                self.answer(0, "done")
            own.attempt += 1
            self.attempt += 1
            self.asks = self.ask_count = self.votes = 0
            self.commit = ""
