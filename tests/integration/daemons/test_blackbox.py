"""The flight recorder of a real daemon: dumps on failures, for SIGUSR1 and by RPC, and what is made of them."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from daemon import BINARY, DEADLINE_S, Daemon, call, clean_environment, run_command
from raw import RawRank, declare_all, frame, request
from scripted_daemon import answering
from small_disk import fill, small_tmpfs
from trace_events import check_trace

NAMES = ["a", "b", "c"]
BUCKETS = ("--engine-first-bucket-bytes", "64", "--engine-bucket-bytes", "64")  # one for each tensor
SHORT = ("--deadlines-step-ms", "1500", "--deadlines-first-step-ms", "60000")


def wait_for_dumps(folder: Path, count: int) -> list[Path]:
    end = time.monotonic() + DEADLINE_S
    while len(found := sorted(folder.glob("*.jsonl"))) < count:
        assert time.monotonic() < end, f"{len(found)} of {count} dumps in {folder}"
        time.sleep(0.01)
    return found


def lines_of(dump: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in dump.read_text().splitlines()]


def ready(rank: RawRank, step: int, bucket: int) -> None:
    fence = {"epoch": rank.epoch, "attempt": rank.attempt, "step": step, "bucket": bucket}
    message = {"jsonrpc": "2.0", "method": "bucket.ready", "params": fence}
    rank.send(frame(json.dumps(message).encode()))


def take_steps(ranks: list[RawRank], steps: range, late: RawRank | None = None, late_s: float = 0.0) -> None:
    for step in steps:
        asked = []
        for rank in [*(rank for rank in ranks if rank is not late), *([late] if late else [])]:
            if rank is late:
                time.sleep(late_s)
            rank.fill(1.0)
            asked.append((rank, rank.ask_finish(step)))
        for rank, number in asked:
            assert "norm" in rank.finished(number)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state" / "dumps"


def serving(folder: Path, *more: str) -> Daemon:
    return Daemon("--blackbox-folder", str(folder), "--peer-node", "node-a", *BUCKETS, *SHORT, *more)


def three(daemon: Daemon, job: str = "llm") -> list[RawRank]:
    ranks = [RawRank(daemon.socket, job, rank, 3) for rank in range(3)]
    declare_all(ranks, NAMES, 16)
    return ranks


def test_a_rank_that_a_step_waited_for_is_named_with_its_first_bucket(folder: Path) -> None:
    with serving(folder) as daemon:
        ranks = three(daemon)
        take_steps(ranks, range(4))
        ready(ranks[1], 4, 0)
        asked = [ranks[0].ask_finish(4), ranks[2].ask_finish(4)]
        for rank, number in zip((ranks[0], ranks[2]), asked, strict=True):
            assert rank.finished(number)["data"]["kind"] == "step_timeout"
        (dump,) = wait_for_dumps(folder, 1)
        daemon.wait_for_log("flight recorder dumped job=llm ")
        assert dump.stat().st_mode & 0o777 == 0o600
        assert folder.stat().st_mode & 0o777 == 0o700
        head, *records = lines_of(dump)
        assert head["why"] == "failure"
        assert head["cause"]["kind"] == "step_timeout"
        assert head["cause"]["ranks"] == [1]
        assert (head["job"], head["node"], head["world_size"], head["buckets"]) == ("llm", "node-a", 3, 3)
        assert head["incarnation"] == daemon.fields["incarnation"]
        attempts = [record for record in records if record["record"] == "attempt"]
        assert [attempt["state"] for attempt in attempts] == ["done"] * 4 + ["failed"]
        assert attempts[-1]["missing"] == [1]
        last = [record for record in records if record["record"] == "bucket" and record["step"] == 4]
        assert [(bucket["bucket"], bucket["ready"], bucket["state"]) for bucket in last] == [
            (0, 3, "reduced"),
            (1, 2, "collecting"),
            (2, 2, "collecting"),
        ]
        said = run_command("blackbox", "analyze", str(dump))
        assert said.returncode == 0, said.stderr
        sentence = said.stdout.splitlines()[0]
        assert sentence.startswith("Rank 1 on node node-a held up step 4 (epoch ")
        assert sentence.endswith("and bucket 1 is the first that was not ready there.")
        found = json.loads(run_command("blackbox", "analyze", "--json", str(dump)).stdout)
        assert (found["finding"], found["rank"], found["bucket"], found["step"]) == ("late_rank", 1, 1, 4)
        assert 1.4 < found["seconds"] < DEADLINE_S
        take_steps([ranks[0], ranks[2], ranks[1]], range(0))  # the ranks are there, and may go on


def test_a_rank_that_is_late_in_every_step_is_named_from_a_dump_of_the_rpc(folder: Path) -> None:
    with serving(folder) as daemon:
        ranks = three(daemon)
        take_steps(ranks, range(30), late=ranks[2], late_s=0.03)
        answer = call(daemon.unix(), "blackbox.dump", job="llm")
        (dumped,) = answer["result"]["dumps"]  # type: ignore[index]
        assert (dumped["job"], dumped["uid"]) == ("llm", os.getuid())
        (dump,) = wait_for_dumps(folder, 1)
        assert str(dump) == dumped["file"]
        assert lines_of(dump)[0]["why"] == "request"
        found = json.loads(run_command("blackbox", "analyze", "--json", str(dump)).stdout)
        assert (found["finding"], found["rank"], found["node"]) == ("late_rank", 2, "node-a")
        trace = json.loads(run_command("blackbox", "trace", str(dump)).stdout)
        assert {event["name"] for event in trace["traceEvents"] if event["ph"] == "X"} == {
            f"step {step}" for step in range(30)
        }


def test_the_last_steps_of_a_running_job_are_a_trace(folder: Path) -> None:
    """Every span is compared with the run: its step, its place in time, and the rank that it waited for."""
    with serving(folder) as daemon:
        ranks = three(daemon)
        take_steps(ranks, range(6))
        began = time.monotonic()
        take_steps(ranks, range(6, 10), late=ranks[2], late_s=0.03)
        took_us = (time.monotonic() - began) * 1e6
        traced = run_command("trace", "--last", "4", "--address", daemon.socket)
        assert traced.returncode == 0, traced.stderr
        assert list(folder.glob("*.jsonl")) == [], "a trace leaves no dump behind"
        trace = json.loads(traced.stdout)
        assert trace["otherData"] == {"job": "llm"}
        events = check_trace(trace)
        assert {event["args"]["name"] for event in events if event["name"] == "process_name"} == {"node-a"}
        steps = {event["name"]: event for event in events if event["ph"] == "X"}
        assert list(steps) == [f"step {step}" for step in range(6, 10)]
        times = [(step["ts"], step["ts"] + step["dur"]) for step in steps.values()]
        assert all(end <= begin for (_, end), (begin, _) in pairwise(times))
        assert 4 * 30e3 <= times[-1][1] - times[0][0] <= took_us
        late = [event for event in events if event["name"] == "last ask"]
        assert [event["args"] for event in late] == [{"rank": 2}] * 4
        for category, name in (("ready", "bucket {} collecting"), ("reduce", "bucket {}")):
            begins = [event for event in events if event["ph"] == "b" and event["cat"] == category]
            ends = {event["id2"]["local"]: event for event in events if event["ph"] == "e" and event["cat"] == category}
            assert sorted(event["name"] for event in begins) == sorted(name.format(n) for n in (0, 1, 2) for _ in steps)
            for event in begins:
                begin, end = times[event["args"]["attempt"] - begins[0]["args"]["attempt"]]
                assert begin <= event["ts"] <= ends[event["id2"]["local"]]["ts"] <= end


def test_a_trace_is_of_one_job_and_goes_where_it_is_told(folder: Path, tmp_path: Path) -> None:
    with serving(folder) as daemon:
        none = run_command("trace", "--address", daemon.socket)
        assert (none.returncode, none.stdout) == (1, "")
        assert "no jobs" in none.stderr
        ranks = three(daemon, "a")
        idle = run_command("trace", "--address", daemon.socket)
        assert (idle.returncode, idle.stdout) == (1, "")
        assert "job 'a' has begun no step yet" in idle.stderr
        take_steps(ranks, range(1))
        take_steps(three(daemon, "language"), range(2))
        several = run_command("trace", "--address", daemon.socket)
        assert several.returncode == 1
        assert "the daemon has 2 jobs: a, language" in several.stderr
        assert "name one of them with --job" in several.stderr
        slip = run_command("trace", "--job", "langage", "--address", daemon.socket)
        assert (slip.returncode, slip.stdout) == (1, "")
        assert "did you mean 'language'?" in slip.stderr
        out = tmp_path / "trace.json"
        told = run_command("trace", "--job", "language", "-o", str(out), "--address", daemon.socket)
        assert (told.returncode, told.stdout) == (0, ""), told.stderr
        events = check_trace(json.loads(out.read_text()))
        assert [event["name"] for event in events if event["ph"] == "X"] == ["step 0", "step 1"]
        nowhere = run_command("trace", "--job", "a", "-o", str(tmp_path / "no/such"), "--address", daemon.socket)
        assert nowhere.returncode == 1
        assert f"cannot write '{tmp_path / 'no/such'}'" in nowhere.stderr
        assert list(folder.glob("*.jsonl")) == []
    gone = run_command("trace", "--address", daemon.socket)
    assert gone.returncode == 69
    assert run_command("trace", "--last", "0").returncode == 64


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A dump as a daemon writes it."""
    folder = tmp_path_factory.mktemp("dump") / "dumps"
    with serving(folder) as daemon:
        take_steps(three(daemon), range(2))
        call(daemon.unix(), "blackbox.dump")
        return wait_for_dumps(folder, 1)[0].read_bytes()


def with_head(dump: bytes, **changed: object) -> bytes:
    head, rest = dump.split(b"\n", 1)
    return json.dumps({**json.loads(head), **changed}).encode() + b"\n" + rest


def traced_of(path: Path, incarnation: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """A trace of a daemon that says it has dumped into `path`."""
    status = {"incarnation": incarnation, "jobs": [{"job": "llm"}]}
    answers = {"status.get": status, "blackbox.dump": {"dumps": [{"job": "llm", "uid": 0, "file": str(path)}]}}
    with answering(tmp_path / "liar.sock", answers) as socket:
        return run_command("trace", "--address", str(socket))


def test_a_trace_removes_no_file_but_the_dump_that_it_asked_for(dump: bytes, tmp_path: Path) -> None:
    incarnation = json.loads(dump.split(b"\n", 1)[0])["incarnation"]
    later = time.time_ns() // 1000 + 3600 * 10**6
    right = with_head(dump, taken_unix_us=later)
    cases = {
        "it is no dump": b"precious words\n",
        "it is no dump: ": right[:-9],
        "it is of a failure or a signal": with_head(dump, taken_unix_us=later, why="signal"),
        "a dump of job 'other' and not of 'llm'": with_head(dump, taken_unix_us=later, job="other"),
        "another daemon has written this dump": with_head(dump, taken_unix_us=later, incarnation="0" * 16),
        "taken before it was asked for": dump,
    }
    file = tmp_path / "file"
    for said, content in cases.items():
        file.write_bytes(content)
        refused = traced_of(file, incarnation, tmp_path)
        assert (refused.returncode, refused.stdout) == (1, ""), said
        assert f"{file}: it is left as it is: " in refused.stderr
        assert said in refused.stderr
        assert file.read_bytes() == content
    file.write_bytes(right)
    (tmp_path / "link").symlink_to(file)
    assert traced_of(tmp_path / "link", incarnation, tmp_path).returncode == 1
    assert file.exists()
    assert (tmp_path / "link").is_symlink()
    for path in (tmp_path, tmp_path / "none", Path("file")):
        assert traced_of(path, incarnation, tmp_path).returncode == 1
    assert file.read_bytes() == right
    done = traced_of(file, incarnation, tmp_path)
    assert done.returncode == 0, done.stderr
    assert not file.exists()
    check_trace(json.loads(done.stdout))


def test_sigusr1_dumps_every_job_and_the_daemon_serves_on(folder: Path) -> None:
    with serving(folder) as daemon:
        jobs = [three(daemon, f"job-{number}") for number in range(5)]
        for ranks in jobs:
            take_steps(ranks, range(2))
        daemon.process.send_signal(signal.SIGUSR1)
        dumps = wait_for_dumps(folder, 5)
        heads = [lines_of(dump)[0] for dump in dumps]
        assert sorted(head["job"] for head in heads) == [f"job-{number}" for number in range(5)]
        assert {head["why"] for head in heads} == {"signal"}
        take_steps(jobs[0], range(2, 4))
        mixed = run_command("blackbox", "analyze", *map(str, dumps))
        assert mixed.returncode == 1
        assert "the files are of 5 jobs" in mixed.stderr
        assert run_command("blackbox", "analyze", "--job", "job-3", *map(str, dumps)).returncode == 0
        assert daemon.terminate() == 0


def test_only_the_last_dumps_are_kept(folder: Path) -> None:
    with serving(folder, "--blackbox-kept-files", "3") as daemon:
        ranks = three(daemon)
        files = []
        for step in range(8):
            take_steps(ranks, range(step, step + 1))
            files.append(call(daemon.unix(), "blackbox.dump")["result"]["dumps"][0]["file"])  # type: ignore[index]
            daemon.wait_for_log("flight recorder dumped job=llm ")
        assert [str(dump) for dump in wait_for_dumps(folder, 3)] == files[-3:]


def test_a_folder_that_cannot_be_used_costs_one_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with serving(tmp_path / "file") as daemon:
        ranks = three(daemon)
        for _ in range(3):
            error: Any = call(daemon.unix(), "blackbox.dump")["error"]
            assert error["data"]["kind"] == "internal_error"
            assert str(tmp_path / "file") in error["message"]
        take_steps(ranks, range(2))
        daemon.wait_for_log("a dump of the flight recorder is lost, and so may be later ones job=llm ")
        assert daemon.terminate() == 0
        assert daemon.process.stderr is not None
        rest = [json.loads(line)["msg"] for line in daemon.process.stderr.read().splitlines()]
        assert not [line for line in rest if "is lost" in line]


def check_that_no_dump_is_written(daemon: Daemon, folder: Path, fill_up: Callable[[], None]) -> None:
    """Failures and calls find no room: callers hear so, the log has one line, and ranks go on."""
    ranks = three(daemon)
    take_steps(ranks, range(3))
    fill_up()
    for _ in range(3):
        error: Any = call(daemon.unix(), "blackbox.dump")["error"]
        assert error["data"]["kind"] == "insufficient_memory"
        assert str(folder) in error["message"]
        assert "blackbox.folder" in error["data"]["hint"]
    asked = [ranks[0].ask_finish(3), ranks[2].ask_finish(3)]  # a failure with a dump of its own
    for rank, number in zip((ranks[0], ranks[2]), asked, strict=True):
        assert rank.finished(number)["data"]["kind"] == "step_timeout"
    daemon.process.send_signal(signal.SIGUSR1)
    daemon.wait_for_log("a dump of the flight recorder is lost, and so may be later ones job=llm ")
    daemon.wait_for_log("SIGUSR1: no flight recorder is dumped: ")
    assert {file.name for file in folder.iterdir()} <= {"rest"}  # nothing is left of a dump
    assert daemon.terminate() == 0
    assert daemon.process.stderr is not None
    said = [*daemon.log, *(json.loads(line) for line in daemon.process.stderr.read().splitlines())]
    assert len([line for line in said if "is lost" in line["msg"]]) == 1


def test_a_full_disk_costs_one_warning_and_callers_hear_of_it(tmp_path: Path) -> None:
    with small_tmpfs(tmp_path / "small") as folder, serving(folder) as daemon:
        check_that_no_dump_is_written(daemon, folder, lambda: fill(folder))


def test_a_limit_of_file_sizes_is_like_a_full_disk(tmp_path: Path) -> None:
    """Its signal would end a process that does not expect it."""
    folder = tmp_path / "dumps"
    folder.mkdir(mode=0o700)
    with serving(folder) as daemon:

        def limit() -> None:
            resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, (512, 512))

        check_that_no_dump_is_written(daemon, folder, limit)


def test_dumps_can_be_off() -> None:
    with Daemon("--blackbox-folder", "off") as daemon:
        error: Any = call(daemon.unix(), "blackbox.dump")["error"]
        assert error["data"]["kind"] == "invalid_request"
        assert 'blackbox.folder is "off"' in error["message"]
        daemon.process.send_signal(signal.SIGUSR1)
        daemon.wait_for_log("SIGUSR1: no flight recorder is dumped")


def test_without_a_setting_dumps_lie_beside_the_socket() -> None:
    with Daemon() as daemon:
        ranks = three(daemon)
        take_steps(ranks, range(1))
        dumped: Any = call(daemon.unix(), "blackbox.dump")["result"]
        beside = Path(daemon.socket.removesuffix(".sock") + ".blackbox")
        (dump,) = wait_for_dumps(beside, 1)
        assert dumped["dumps"][0]["file"] == str(dump)


def test_dumps_of_a_private_daemon_outlive_it(tmp_path: Path) -> None:
    folder = tmp_path / "dumps"
    script = 'exec "$0" rpc blackbox.dump'
    done = subprocess.run(
        [BINARY, "run", "--blackbox-folder", str(folder), "--", "sh", "-c", script, BINARY],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert (done.returncode, json.loads(done.stdout)) == (0, {"dumps": []}), done.stderr
    shown = run_command("config", "show").stdout
    assert "[blackbox]" in shown
    assert "kept_files = 32" in shown


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "the file is empty"),
        ("{}", "line 1: gradsync_blackbox"),
        ("no", "line 1"),
    ],
)
def test_what_is_no_dump_is_refused_by_file_and_line(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "dump.jsonl"
    file.write_text(text)
    said = run_command("blackbox", "analyze", str(file))
    assert said.returncode == 1
    assert f"gradsyncd: {file}: " in said.stderr
    assert complaint in said.stderr
    assert run_command("blackbox", "trace", str(tmp_path / "none")).returncode == 64


def test_requests_come_with_ids(folder: Path) -> None:
    """A call without an id writes the dumps all the same: it is no read."""
    with serving(folder) as daemon:
        ranks = three(daemon)
        ranks[0].send(frame(request(90, "blackbox.dump").replace(b'"id": 90, ', b"")))
        wait_for_dumps(folder, 1)
