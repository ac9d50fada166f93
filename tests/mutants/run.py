"""Plants one fault at a time in a copy of the tree and looks which test notices: run.py [ID...]

`run.py --copy [ID...]` brings the copy up to date and compiles these faults into it where they can be chosen from;
`run.py --targets [ID...]` says what has to be built for them. Leaves build/mutants/report.json. A fault that does not
apply or does not compile is an error of this harness, and so is a tree whose tests fail before anything is planted.
Exit status 1: a fault survived, 2: an error.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from adapter import ADAPTER
from client import CLIENT
from collective import COLLECTIVE
from communicators import COMMUNICATORS
from defer import DEFER
from epoch import EPOCH
from gpu import GPU, IMPORT
from gpu_nodes import GPU_NODES
from links import LINKS
from mutant import Layer, Mutant
from nccl import NCCL
from nodes import NODES
from norm import NORM
from plan import PLAN
from policy import POLICY
from recorder import RECORDER
from restart import RESTART
from sites import SITES
from switch import VARIABLE, is_switched, switched
from sync import SYNC
from transfer import TRANSFER
from travel import TRAVEL
from wire import WIRE

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "mutants"
TREE = WORK / "tree"
BUILD = TREE / "build" / "cpu-release"
DEADLINE_S = 600.0
# Tests of a tree with a fault may take so many times what they take without, and so many seconds more, until they hang.
TIMES_SLOWER = 5.0
SLACK_S = 20.0
MUTANTS: tuple[Mutant, ...] = (
    *NORM,
    *PLAN,
    *SYNC,
    *ADAPTER,
    *CLIENT,
    *RESTART,
    *POLICY,
    *EPOCH,
    *GPU,
    *GPU_NODES,
    *IMPORT,
    *NODES,
    *TRAVEL,
    *TRANSFER,
    *DEFER,
    *WIRE,
    *RECORDER,
    *LINKS,
    *NCCL,
    *COLLECTIVE,
    *COMMUNICATORS,
    *SITES,
)


class HarnessError(Exception):
    """Says nothing about the tests."""


@dataclass(frozen=True)
class Check:
    """Some tests, `command` of the copy, and what has to be built for them: targets, with spaces between them."""

    target: str | None
    command: tuple[str, ...]


def pytest(*paths: str) -> tuple[str, ...]:
    return (
        str(TREE / "build" / "venv" / "bin" / "python"),
        "-m",
        "pytest",
        "-q",
        "-x",
        *paths,
    )


def unit(binary: str, *arguments: str) -> tuple[str, ...]:
    return (str(BUILD / "bin" / binary), "--gtest_fail_fast", *arguments)


PRODUCT = Check("gradsyncd", pytest("tests/python/reduced/test_product_worlds.py"))
SIMULATION = Check(
    "gradsync_sim",
    (str(BUILD / "bin" / "gradsync_sim"), "--seeds", "20", "--many-seeds", "0", "--out", str(WORK / "sim.json")),
)
TORCH = [
    f"tests/python/torch/{room}/test_torch_{name}.py"
    for room, name in (("measured", "statistics"), ("calls", "placed"), ("observed", "observe"))
]
# The tests that should notice first, then everything about that layer.
CHECKS: dict[Layer, tuple[Check, ...]] = {
    "plan": (Check("plan_test", unit("plan_test")), PRODUCT),
    "norm": (
        Check("device_test", unit("device_test", "--gtest_filter=*Stats*:NormSum*:*Float*:StepMath*")),
        Check("engine_tests", unit("engine_tests", "--gtest_filter=StatsEngine.*")),
        PRODUCT,
    ),
    "sync": (
        Check("plan_test", unit("plan_test")),
        Check("device_test", unit("device_test", "--gtest_filter=Sharded*:StepMath*:*ChunkMath*:*PastCache*")),
        Check("engine_tests", unit("engine_tests", "--gtest_filter=StepMachine*")),
        Check("gradsyncd", pytest("tests/python/synced")),
    ),
    "adapter": (
        Check(None, pytest("tests/python/torch/attached/test_torch_synced.py")),
        Check(None, pytest("tests/python/torch")),
    ),
    "policy": (
        Check("policy_test", unit("policy_test")),
        Check("plan_test", unit("plan_test", "--gtest_filter=Clip*")),
        Check("device_test", unit("device_test", "--gtest_filter=*GroupActions*:DeferredCopies*:RandomPlans*")),
        Check("engine_tests", unit("engine_tests", "--gtest_filter=Group*:Polic*:Imports*:StepReport*")),
        Check("gradsyncd", pytest("tests/python/live/test_clip_daemon.py")),
    ),
    "epoch": (
        Check("engine_tests", unit("engine_tests", "--gtest_filter=Epoch*")),
        Check("engine_tests", unit("engine_tests")),
    ),
    "nodes": (
        Check(
            "engine_tests",
            unit(
                "engine_tests",
                "--gtest_filter=Member*:Coordinator*:VerdictOf*:StepsOver*:Comparison*:CopiesOfNodes*:*NodeSums*:-*Random*",
            ),
        ),
        Check("engine_tests", unit("engine_tests", "--gtest_filter=*LinkedMachines*:StepsOverNodesRandom*")),
    ),
    "travel": (
        Check(
            "engine_tests",
            unit(
                "engine_tests",
                "--gtest_filter=*LocalSeats*:Member*:CoordinatorAttempt*:CoordinatorCompare*:Comparison*:CopiesOfNodes*:"
                "NodePlan*:NodeSums*:Planner*:ArenaOverNodes.*",
            ),
        ),
        Check("engine_tests", unit("engine_tests", "--gtest_filter=ArenaOverNodesRandom*:*LinkedMachines*")),
    ),
    "transfer": (
        Check("lane_transfer_test", unit("lane_transfer_test", "--gtest_filter=-*RandomNodes*")),
        Check("lane_transfer_test", unit("lane_transfer_test", "--gtest_filter=*RandomNodes*")),
    ),
    "recorder": (
        Check("engine_tests", unit("engine_tests", "--gtest_filter=Flight*")),
        Check("rpc_tests", unit("rpc_tests", "--gtest_filter=DumpFile.*")),
        Check("app_test", unit("app_test", "--gtest_filter=Flight*:ChromeTrace*:Dump*:Blackbox*")),
    ),
    "restart": (
        Check(None, pytest("tests/python/connection/test_restart.py")),
        Check("engine_tests", unit("engine_tests", "--gtest_filter=Record*")),
        Check("gradsyncd", pytest("tests/integration/ranks/test_restarts.py")),
    ),
    "gpu": (
        Check("lane_conformance_test", unit("lane_conformance_test", "--gtest_filter=*LaneConformance*:RandomWorlds*")),
        Check("kernel_emulation_test", unit("kernel_emulation_test", "--gtest_filter=*Reduce*")),
    ),
    "gpu_nodes": (
        Check(
            "kernel_emulation_test",
            unit("kernel_emulation_test", "--gtest_filter=*MixedReduce*:LibraryStream*:GivenBack*"),
        ),
        Check("lane_conformance_test", unit("lane_conformance_test", "--gtest_filter=*CollectiveLane*")),
    ),
    "import": (
        Check(
            "engine_tests",
            unit(
                "engine_tests",
                "--gtest_filter=ExportedBuffers*:MemoryProbes*:LaneStop*:OnTwoGpus*:SharedPlan*:JoinCells*",
            ),
        ),
        Check(
            "lane_conformance_test",
            unit("lane_conformance_test", "--gtest_filter=ExportedMemory*:DeviceLost*:*two_lanes*"),
        ),
        Check("gradsyncd gradsync_fake_libcuda", pytest("tests/python/step/test_gpu_memory.py")),
        Check(
            "gradsyncd gradsync_fake_libcuda gradsync_emulated_library",
            pytest("tests/integration/gpu/test_gpu_buffers.py", "-m", "not long"),
        ),
        Check(
            "gradsyncd", pytest("tests/integration/gpu/test_gpu_worker_failures.py", "-m", "not long", "-k", "faults")
        ),
    ),
    "defer": (
        Check("kernel_emulation_test", unit("kernel_emulation_test", "--gtest_filter=GateTest*")),
        Check(
            "gradsyncd gradsync_emulated_library",
            pytest(
                "tests/python/torch/deferred/test_deferred.py", "tests/python/torch/deferred/test_deferred_ranks.py"
            ),
        ),
    ),
    "nccl": (
        Check("nccl_test", unit("nccl_test", "--gtest_filter=-*Conformance*")),
        Check("nccl_test", unit("nccl_test", "--gtest_filter=*Conformance*")),
    ),
    "collective": (
        Check("lane_conformance_test", unit("lane_conformance_test", "--gtest_filter=*CollectiveLane*")),
        Check("plan_test", unit("plan_test", "--gtest_filter=BucketCollectives*")),
    ),
    "communicators": (SIMULATION,),
    "sites": (
        Check(
            "engine_tests",
            unit("engine_tests", "--gtest_filter=*Site*:JobDevices*:Planner*:Communicators*:Roster*:CoordinatorC*"),
        ),
    ),
    "wire": (Check("device_test", unit("device_test", "--gtest_filter=*Wire*")),),
    "links": (
        Check("app_test", unit("app_test", "--gtest_filter=DataLinks*")),
        Check("device_test", unit("device_test", "--gtest_filter=*Wire*")),
        Check("lane_transfer_test", unit("lane_transfer_test", "--gtest_filter=Transfer*:*TransferOverNodes*")),
        SIMULATION,
    ),
    "client": (
        Check(None, pytest("tests/python/step/test_reduced.py", *TORCH)),
        Check(None, pytest("tests/python/torch")),
    ),
}


def environment() -> dict[str, str]:
    paths = {"PYTHONPATH": str(TREE / "clients" / "python" / "src"), "GRADSYNCD": str(BUILD / "bin" / "gradsyncd")}
    return {**os.environ, **paths, "PYTHONDONTWRITEBYTECODE": "1", "CCACHE_BASEDIR": str(TREE), "CCACHE_NOHASHDIR": "1"}


def run(command: tuple[str, ...], deadline_s: float = DEADLINE_S, planted: str = "") -> tuple[int, str]:
    """Exit status, 124 at the deadline, and the end of the output."""
    fault = {VARIABLE: planted} if planted else {}
    with (WORK / "output.txt").open("w+") as output:
        process = subprocess.Popen(
            command,
            cwd=TREE,
            env=environment() | fault,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
            status = 124
        output.seek(0)
        return status, output.read()[-20000:]


def copy_tree(chosen: list[Mutant]) -> None:
    """What git tracks, with these faults to choose from. A file that did not change is not built again."""
    texts: dict[str, bytes] = {path: text.encode() for path, text in switched_texts(chosen).items()}
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        source, target = ROOT / name, TREE / name
        if source.is_file():
            text = texts.get(name) or source.read_bytes()
            if not (target.is_file() and target.read_bytes() == text):
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)
                target.write_bytes(text)
    venv = TREE / "build" / "venv"
    venv.parent.mkdir(parents=True, exist_ok=True)
    if not venv.is_symlink():
        venv.symlink_to(ROOT / "build" / "venv")


def switched_texts(chosen: list[Mutant]) -> dict[str, str]:
    """The files that have a fault of these compiled beside the right code."""
    texts = {path: (ROOT / path).read_text() for path in {mutant.path for mutant in chosen}}
    of_path = {
        path: [each for each in chosen if each.path == path and is_switched(texts[path], each)] for path in texts
    }
    return {path: switched(texts[path], mutants) for path, mutants in of_path.items() if mutants}


def build(target: str) -> None:
    jobs = os.environ.get("JOBS", str(os.cpu_count()))
    status, output = run(("ninja", "-C", str(BUILD), f"-j{jobs}", *target.split()))
    if status != 0:
        raise HarnessError(f"{target} does not compile:\n{output[-3000:]}")


def verdict(check: Check, deadline_s: float = DEADLINE_S, planted: str = "") -> str | None:
    """The test that failed, or None."""
    if check.target is not None:
        build(check.target)
    status, output = run(check.command, deadline_s, planted)
    if status == 0:
        return None
    failed = re.search(r"^\[  FAILED  \] (\S+\.[^\s,]+)|^FAILED (\S+)|^\w+ daemons, (seed \d+): ", output, re.MULTILINE)
    if failed is not None:
        return failed[1] or failed[2] or f"make sim, {failed[3]}"
    running = re.findall(r"^\[ RUN +\] (\S+)", output, re.MULTILINE)
    last = running[-1] if running else Path(check.command[0]).name
    if status == 124:
        return f"{last}, not over after {deadline_s:.0f} s"
    if status < 0:
        return f"{last}, ended by signal {-status}"
    raise HarnessError(f"{' '.join(check.command)} ended with {status}:\n{output[-3000:]}")


def caught_by(mutant: Mutant, deadlines_s: dict[Check, float]) -> str | None:
    right = (ROOT / mutant.path).read_text()
    if right.count(mutant.old) != 1:
        raise HarnessError(f"its text occurs {right.count(mutant.old)} times in {mutant.path}")
    planted = mutant.id if is_switched(right, mutant) else ""
    path = TREE / mutant.path
    whole = path.read_text()
    if not planted:
        path.write_text(right.replace(mutant.old, mutant.new))
    try:
        verdicts = (verdict(check, deadlines_s[check], planted) for check in CHECKS[mutant.layer])
        return next((found for found in verdicts if found is not None), None)
    finally:
        if not planted:
            path.write_text(whole)


def check_tree(layers: set[Layer]) -> dict[Check, float]:
    """Right as it is, and its own client is the one that tests import; how long each check may take with a fault."""
    status, output = run((sys.executable, "-c", "import gradsync; print(gradsync.__file__)"))
    if status != 0 or str(TREE) not in output:
        raise HarnessError(f"tests would import another client: {output}")
    deadlines_s: dict[Check, float] = {}
    for check in (check for layer in sorted(layers) for check in CHECKS[layer]):
        if check.target is not None:
            build(check.target)
        start = time.monotonic()
        if (failed := verdict(check)) is not None:
            raise HarnessError(f"without any fault {failed} fails")
        deadlines_s[check] = SLACK_S + TIMES_SLOWER * (time.monotonic() - start)
    return deadlines_s


def choose(ids: list[str]) -> list[Mutant]:
    known = {mutant.id: mutant for mutant in MUTANTS}
    if unknown := [name for name in ids if name not in known]:
        print(f"mutants: no fault is called {', '.join(unknown)}", file=sys.stderr)
        sys.exit(2)
    return [known[name] for name in ids] or list(MUTANTS)


def targets(chosen: list[Mutant]) -> list[str]:
    checks = [check for layer in {mutant.layer for mutant in chosen} for check in CHECKS[layer]]
    return sorted({target for check in checks for target in (check.target or "").split()})


def main(chosen: list[Mutant]) -> int:
    results: list[dict[str, str | float | None]] = []
    errors: list[str] = []
    try:
        deadlines_s = check_tree({mutant.layer for mutant in chosen})
        print(f"mutants: the tree is right; planting {len(chosen)} faults", flush=True)
    except HarnessError as error:
        print(f"mutants: {error}", file=sys.stderr)
        return 2
    for number, mutant in enumerate(chosen, 1):
        start = time.monotonic()
        try:
            found = caught_by(mutant, deadlines_s)
            seconds = round(time.monotonic() - start, 1)
            results.append({"id": mutant.id, "fault": mutant.fault, "caught_by": found, "seconds": seconds})
            said = f"caught by {found}" if found else "SURVIVED"
        except HarnessError as error:
            errors.append(mutant.id)
            said = f"ERROR: {error}"
        print(f"{number}/{len(chosen)} {mutant.id} ({time.monotonic() - start:.0f} s): {said}", flush=True)
        survivors = [str(result["id"]) for result in results if result["caught_by"] is None]
        report = {
            "planted": len(results),
            "caught": len(results) - len(survivors),
            "survivors": survivors,
            "errors": errors,
            "mutants": results,
        }
        (WORK / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    print(f"mutants: {len(results)} planted, {len(results) - len(survivors)} caught, {len(survivors)} survived")
    return 2 if errors else 1 if survivors else 0


if __name__ == "__main__":
    WORK.mkdir(parents=True, exist_ok=True)
    if sys.argv[1:2] == ["--copy"]:
        copy_tree(choose(sys.argv[2:]))
    elif sys.argv[1:2] == ["--targets"]:
        print(*targets(choose(sys.argv[2:])))
    else:
        sys.exit(main(choose(sys.argv[1:])))
