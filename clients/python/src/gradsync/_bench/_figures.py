"""A figure of this node beside its floor, and what is to be said of the two."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Figure", "in_turns"]


@dataclass(frozen=True, slots=True)
class Figure:
    """How long gradsync takes for something, and how long the same takes without it."""

    what: str
    floor: str
    taken_s: float
    floor_s: float
    allowed: float  #: times the floor
    advice: str  #: where it takes longer

    @property
    def ratio(self) -> float:
        return self.taken_s / self.floor_s

    @property
    def well(self) -> bool:
        return self.ratio <= self.allowed


def in_turns(contenders: list[Callable[[], list[float]]], rounds: int) -> list[float]:
    """The times of each: the lower quartile of all that its rounds measured.

    The rounds take turns, because machines that share memory and cores with others change their speed within seconds.
    What disturbs makes a time longer and none shorter, so the middle would say more of the neighbours.
    """
    times: list[list[float]] = [[] for _ in contenders]
    for number in range(rounds):
        order = list(enumerate(contenders))
        for index, contender in order if number % 2 else reversed(order):
            times[index] += contender()
    return [sorted(taken)[len(taken) // 4] for taken in times]
