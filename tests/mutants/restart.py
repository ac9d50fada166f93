"""Faults in what happens when a daemon ends in the middle of a run."""

from __future__ import annotations

from mutant import Mutant

__all__ = ["RESTART"]


def client(name: str, fault: str, file: str, old: str, new: str) -> Mutant:
    return Mutant(name, fault, "restart", f"clients/python/src/gradsync/{file}", old, new)


def engine(name: str, fault: str, old: str, new: str) -> Mutant:
    return Mutant(name, fault, "restart", "service/engine/job/job_record.cpp", old, new)


RESTART = (
    client(
        "only-ones-own-attempt-is-begun",
        "Gradients that a later attempt has touched count as whole.",
        "_step/_record.py",
        "        if begun >= stamp:",
        "        if begun == stamp:",
    ),
    client(
        "begun-before-done",
        "A step that is done is computed again, on some ranks.",
        "_step/_record.py",
        "        if done == stamp:",
        "        if done == stamp and begun != stamp:",
    ),
    client(
        "the-record-is-asked-for-ever",
        "What was decided for one attempt is decided for the next one too.",
        "_step/_reconnect.py",
        "        record, self._record = self._record, None",
        "        record = self._record",
    ),
    client(
        "any-plan-will-do",
        "A plan with other offsets is gone on with.",
        "_step/_reconnect.py",
        "        if {key: reply.get(key) for key in _SAME} != self._declared:",
        "        if not reply:",
    ),
    client(
        "weights-are-compared-again",
        "Fingerprints of weights that moved are given once more.",
        "_step/_reconnect.py",
        "        tensors = self._tensors if with_weights else [",
        "        tensors = self._tensors if self._tensors else [",
    ),
    client(
        "rows-keep-their-stamp",
        "Rows are handed over as they are.",
        "_step/_reduced.py",
        "            if fields[index] == before:",
        "            if fields[index] == 0:",
    ),
    client(
        "half-a-step",
        "clip.apply is called at a daemon that knows no norm.",
        "_step/_declared.py",
        '            if self._half_done is not None and method != "norm.compute":',
        '            if self._half_done is not None and method == "norm.compute":',
    ),
    client(
        "the-last-step-is-not-said",
        "Policies begin anew at the next daemon: nobody tells it which step was done last.",
        "_job.py",
        "        self._last_done = (epoch, attempt)",
        "        self._last_done = None",
    ),
    client(
        "calls-follow-the-rank",
        "What was meant for one daemon is sent to the next.",
        "_session/_rank_session.py",
        "        return None if seat in (None, self.seat) else ",
        "        return None if seat is None or self.seat else ",
    ),
    client(
        "pause-ends-with-the-daemon",
        "A paused rank is not paused at the next daemon.",
        "_session/_rank_session.py",
        "            if self._paused:",
        "            if not params:",
    ),
    client(
        "a-child-keeps-the-arena",
        "A forked child keeps the descriptor.",
        "_step/_arena.py",
        "            os.close(arena.fd)\n            arena.fd = -1",
        "            arena.fd = -1",
    ),
    engine(
        "begun-is-not-noted",
        "Half reduced gradients are taken for inputs.",
        "    record_->begin(attempt_word({epochs_.epoch(), machine_->attempt()}));",
        "    record_->begin(attempt_word({epochs_.epoch(), 0}));",
    ),
    engine(
        "done-is-not-noted",
        "Who has not heard that a step is done computes it anew.",
        "  record_->finish(attempt_word({epochs_.epoch(), attempt}));",
        "  record_->finish(0);",
    ),
)
