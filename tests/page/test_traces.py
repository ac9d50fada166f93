"""Traces of runs in the viewer that they are written for: Perfetto shows every event, where and as long as it was."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "integration" / "nodes"))

from conftest import expect
from daemon import call, run_command
from node_jobs import Nodes, job_over
from perfetto import Perfetto
from ranks_in_threads import on_all, whole
from sync_jobs import MediumRank, sync_again
from training import LATE_S, SIZES, Training

STEPS = 6

#: (process, thread, name, begin, length) of what lies on the line of a thread; moments have no length
ON_THREADS = """
SELECT p.name, t.name, s.name, s.ts, s.dur FROM slice s JOIN thread_track k ON s.track_id = k.id
JOIN thread t USING (utid) JOIN process p USING (upid) ORDER BY s.ts"""
#: (process, category, name, begin, length) of what may overlap
IN_PROCESSES = """
SELECT p.name, s.category, s.name, s.ts, s.dur FROM slice s JOIN process_track k ON s.track_id = k.id
JOIN process p USING (upid) ORDER BY s.ts"""
LAST_RANKS = "SELECT extract_arg(arg_set_id, 'args.rank') FROM slice WHERE name = 'last ask' ORDER BY ts"
LOST = "SELECT name, value FROM stats WHERE severity != 'info' AND value > 0"

Row = tuple[Any, ...]


def written(trace: str) -> tuple[Counter[Row], Counter[Row]]:
    """What the file says, in the columns of the two questions above."""
    events = json.loads(trace)["traceEvents"]
    names = {(each["name"], each["pid"]): each["args"]["name"] for each in events if each["ph"] == "M"}
    on_threads: Counter[Row] = Counter()
    begins: dict[Row, int] = {}
    in_processes: Counter[Row] = Counter()
    for event in events:
        process = names.get(("process_name", event["pid"]))
        if event["ph"] in "Xi":
            thread = names["thread_name", event["pid"]]
            on_threads[process, thread, event["name"], event["ts"] * 1000, event.get("dur", 0) * 1000] += 1
        elif event["ph"] in "be":
            key = (process, event["cat"], event["name"], event["id2"]["local"])
            begin = begins.setdefault(key, event["ts"])
            if event["ph"] == "e":
                in_processes[(*key[:3], begin * 1000, (event["ts"] - begin) * 1000)] += 1
    return on_threads, in_processes


def check_shown(perfetto: Perfetto, trace: str) -> None:
    on_threads, in_processes = written(trace)
    assert perfetto.rows(LOST) == []
    assert Counter(map(tuple, perfetto.rows(ON_THREADS))) == on_threads
    assert Counter(map(tuple, perfetto.rows(IN_PROCESSES))) == in_processes
    ((total,),) = perfetto.rows("SELECT count(*) FROM slice")
    assert total == on_threads.total() + in_processes.total(), "the viewer has events in other places"


def test_perfetto_shows_the_last_steps_of_a_running_job(page: Any, training: Training) -> None:
    """The trace is that of `gradsyncd trace`."""
    made = run_command("trace", "--last", str(STEPS), "--address", training.daemon.socket)
    assert made.returncode == 0, made.stderr
    with Perfetto(page, made.stdout) as perfetto:
        check_shown(perfetto, made.stdout)
        steps = [row for row in perfetto.rows(ON_THREADS) if row[2].startswith("step ")]
        assert len(steps) == STEPS
        first = int(steps[0][2].split()[1])
        assert [step[2] for step in steps] == [f"step {first + n}" for n in range(STEPS)]
        whole_steps = steps[:-1]  # the last one may be open
        assert all(step[4] > LATE_S * 1e9 for step in whole_steps), "rank 1 sleeps in each step"
        last = [rank for (rank,) in perfetto.rows(LAST_RANKS)]
        events = json.loads(made.stdout)["traceEvents"]
        assert last == [event["args"]["rank"] for event in events if event["name"] == "last ask"]
        assert last.count(1) > len(whole_steps) / 2, "rank 1 is late; a loaded machine may hold up rank 0 now and then"
        buckets = Counter(row[2] for row in perfetto.rows(IN_PROCESSES) if row[1] == "reduce")
        assert 1 < len(buckets) <= len(SIZES)
        assert set(buckets) == {f"bucket {number}" for number in range(len(buckets))}
        assert all(count >= STEPS - 1 for count in buckets.values())
        (process,) = {row[0] for row in perfetto.rows(ON_THREADS)}
        expect(perfetto.drawn().get_by_text(f"{process} 1", exact=True).first).to_be_visible()
    page.complaints = []  # of what the viewer asked of other hosts


def test_perfetto_shows_the_nodes_of_a_job_with_their_links(page: Any, tmp_path: Path) -> None:
    """The trace is that of `gradsyncd blackbox trace`."""
    with Nodes(tmp_path, 2) as nodes, job_over(nodes, 1, kind=MediumRank) as ranks:
        whole(on_all(ranks, MediumRank.declare))
        for step in range(3):
            sync_again(ranks, step)
        answers: list[Any] = [call(daemon.unix(), "blackbox.dump")["result"] for daemon in nodes.daemons]
        dumps = [answer["dumps"][0]["file"] for answer in answers]
        made = run_command("blackbox", "trace", *dumps)
    assert made.returncode == 0, made.stderr
    with Perfetto(page, made.stdout) as perfetto:
        check_shown(perfetto, made.stdout)
        steps = Counter((row[0], row[2]) for row in perfetto.rows(ON_THREADS) if row[2].startswith("step "))
        assert steps == Counter({(f"node{node}", f"step {step}"): 1 for node in range(2) for step in range(3)})
        links = {(row[0], row[2].split(" from ")[1]) for row in perfetto.rows(IN_PROCESSES) if row[1] == "link"}
        assert links == {("node0", "node 1"), ("node1", "node 0")}
        for node in range(2):
            expect(perfetto.drawn().get_by_text(f"node{node} {node + 1}", exact=True).first).to_be_visible()
    page.complaints = []
