"""Names that a client chose so that they collide in `std::hash` cost what others cost."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable

import pytest
from attacks import ask_declare, computed, declare, in_turn, message_with_keys
from collisions import colliding_names, standard_hash
from hostile import Daemon
from raw import RawClient, RawRank, frame

KEYS, TENSORS = 20_000, 20_000  # measure.py has as many as a message holds
PROMPT_S = 10.0  # less than another job once waited


def plain_names(number: int) -> list[str]:
    """As long as the colliding ones, of which they have no order either."""
    chosen = random.Random(7)
    return [f"{chosen.getrandbits(64):016x}" for _ in range(number)]


def test_the_names_collide() -> None:
    names = colliding_names(KEYS)
    assert len(set(names)) == KEYS
    assert len({standard_hash(name) for name in names}) == 1
    assert len({standard_hash(name) for name in plain_names(KEYS)}) == KEYS


def test_keys_of_a_message_that_collide() -> None:
    with Daemon() as daemon:

        def refused(message: bytes) -> float:
            with RawClient(daemon.socket) as client:

                def ask() -> None:
                    client.send(frame(message))
                    assert client.message()["error"]["data"]["kind"] in ("invalid_params", "parse_error")

                return computed(daemon, ask)

        plain, colliding = (message_with_keys(names(KEYS)) for names in (plain_names, colliding_names))
        assert len(colliding) == len(plain) <= 1 << 20
        usual, attacked = in_turn([lambda: refused(plain), lambda: refused(colliding)])
        assert attacked < 5 * usual, f"{usual * 1e3:.1f} ms of plain keys, {attacked * 1e3:.1f} ms of colliding ones"


@pytest.mark.training
def test_names_of_tensors_that_collide() -> None:
    with Daemon() as daemon:

        def declared(names: list[str]) -> float:
            with RawRank(daemon.socket, "names", 0, 1) as rank:
                return computed(daemon, lambda: declare(rank, names))

        plain, colliding = plain_names(TENSORS), colliding_names(TENSORS)
        usual, attacked = in_turn([lambda: declared(plain), lambda: declared(colliding)], rounds=3)
        assert attacked < 4 * usual, f"{usual:.2f} s of plain names, {attacked:.2f} s of colliding ones"


@pytest.mark.parametrize("names", [plain_names, colliding_names], ids=["plain", "colliding"])
def test_another_job_declares_and_the_daemon_ends_meanwhile(names: Callable[[int], list[str]]) -> None:
    with (
        Daemon() as daemon,
        RawRank(daemon.socket, "large", 0, 1) as large,
        RawRank(daemon.socket, "small", 0, 1) as small,
    ):
        ask_declare(large, names(TENSORS))
        declare(small, ["w"], timeout=PROMPT_S)
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.process.wait(timeout=PROMPT_S) == 0
