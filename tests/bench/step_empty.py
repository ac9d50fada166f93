"""Steps of one element by two ranks, against bare servers that exchange the same frames with the same client.

`echo` answers each rank at once. `bare_step` does what every step has to do: it answers when both ranks have asked and
another thread was woken and has woken its own.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import results
from gradsync._wire import dump
from processes import Ranks, Unavailable, listening, private_daemon

WORLD_SIZE = 2
STEPS = 500  # in a turn
WARM_UP_ROUNDS = 2
WANTED_P50 = 3.0
HELLO = '{"protocol":1,"server":{"name":"bench_echo"},"incarnation":"0000000000000000","limits":{}}'


@contextlib.contextmanager
def echo_server(binary: Path, folder: Path, result: str, step: Sequence[str] = ()) -> Iterator[str]:
    """`bench_echo`, with its arguments for a bare step; yields its address."""
    if not binary.exists():
        raise Unavailable(f"{binary} is missing: build it with `make build`")
    hello, other, path = folder / "hello.json", folder / "result.json", folder / "echo.sock"
    hello.write_text(HELLO)
    other.write_text(result)
    with listening("bench_echo", [str(binary), str(path), str(hello), str(other), *step], path, {}):
        yield str(path)


def recorded_frames(address: str) -> dict[str, Any]:
    """The messages of one step of two ranks, as contender `empty_step` records them."""
    ranks = Ranks("empty_step", WORLD_SIZE, {"steps": 1}, {"GRADSYNC_ADDRESS": address})
    try:
        ranks.step()
        frames: dict[str, Any] = ranks.results[0]["frames"]
        return frames
    finally:
        ranks.close()


def percentile(samples: list[float], share: float) -> float:
    return sorted(samples)[min(len(samples) - 1, int(len(samples) * share))]


def run(name: str, rounds: int, binaries: Path) -> dict[str, Any]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gradsync-bench-")))
        address = stack.enter_context(private_daemon(binaries / "gradsyncd", folder))
        frames = recorded_frames(address)
        contenders = {"ours": Ranks("empty_step", WORLD_SIZE, {"steps": STEPS}, {"GRADSYNC_ADDRESS": address})}
        stack.callback(contenders["ours"].close)
        for bare, step in (("echo", ()), ("bare_step", ("lane",))):
            (folder / bare).mkdir()
            echo = stack.enter_context(echo_server(binaries / "bench_echo", folder / bare, frames["result"], step))
            contenders[bare] = Ranks("echo", WORLD_SIZE, {"steps": STEPS, "frames": frames}, {"BENCH_ECHO": echo})
            stack.callback(contenders[bare].close)

        p50: dict[str, list[float]] = {contender: [] for contender in contenders}
        p99: dict[str, list[float]] = {contender: [] for contender in contenders}
        for number in range(-WARM_UP_ROUNDS, rounds):
            for contender, ranks in list(contenders.items())[:: 1 if number % 2 else -1]:
                ranks.step()
                times = [time for result in ranks.results for time in result["microseconds"]]
                if number >= 0:
                    p50[contender].append(round(percentile(times, 0.5), 2))
                    p99[contender].append(round(percentile(times, 0.99), 2))
            if any(result["norm"] != 0.5 for result in contenders["ours"].results):
                raise RuntimeError(f"the norm of 0.5 is not 0.5: {contenders['ours'].results}")
    middle50, middle99 = ({key: statistics.median(times) for key, times in p.items()} for p in (p50, p99))
    config = {
        "world_size": WORLD_SIZE,
        "steps_in_a_round": STEPS,
        "rounds": rounds,
        "frame_bytes": {key: len(dump(frames[key])) for key in ("notification", "params")}
        | {"result": len(frames["result"])},
        "p99_us": middle99,
        "shown": {
            "p99: ours / echo": f"{middle99['ours'] / middle99['echo']:.3g}",
            "p50: ours / bare_step": f"{middle50['ours'] / middle50['bare_step']:.3g}",
        },
        "p99_samples": p99,
    }
    bars = [
        results.Bar("p50: ours / echo", round(middle50["ours"] / middle50["echo"], 3), WANTED_P50),
    ]
    return results.write(
        name, "us", p50["ours"], {bare: p50[bare] for bare in ("echo", "bare_step")}, None, config, bars
    )
