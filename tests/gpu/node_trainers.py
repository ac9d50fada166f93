"""Trainers of several nodes that share one GPU: two daemons or more, their workers, and NCCL between these.

    node_trainers.py --gpu UUID --kernels libgradsync_kernels.so --nccl libnccl.so.2 [--shapes 2x1,2x2,3x1]
                     [--parts sums,crossing,abort,mapping,killed,end] [--env NAME=VALUE]... [--json FILE]

Starts the daemon that GRADSYNCD names once for each node, all on this machine. NCCL refuses two members of a
communicator on one GPU of one host, so each node has an NCCL_HOSTID of its own, and members talk over sockets of the
loopback interface: what is found here about time and speed holds for this arrangement only. A shape is nodes x ranks
of each; gradients of all ranks lie on the GPU. The parts, each with a line of the results:

    sums SHAPE  gradients of whole numbers have the bits that ranks of one daemon have on CPUs; those of others have
                equal bits on all ranks, and are as near to the exact mean as any order of additions is; norms. And what
                the communicators take: memory of the GPU that is used more when they are built, for each member.
    crossing    two jobs whose collectives begin in different orders on two nodes
    abort       the worker of node 1 is stopped (SIGSTOP) in a step: what the ranks hear and when, whether the worker of
                node 0 could abort or was replaced, and sums of the epoch after that, of this and of another job
    mapping     the same while the worker of node 0 maps memory of another job: whether that waits for the collective
    killed      the worker of node 1 is killed while the collective of node 0 waits for it
    end         memory of the GPU when the ranks have ended, and that of the daemons comes back with them

Needs torch and the client. `--driver libcuda_fake.so` takes an emulated GPU, and --nccl a fake of NCCL then, which is
how this program is tested. Ends with 1 where a part fails; each has a deadline, and goes on where one before it failed.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration" / "nodes"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))

from daemon import Daemon
from gpu_ranks import GpuRank, Program, workers_of
from node_jobs import Nodes
from ranks_in_threads import on_all, whole
from trainers import Refused, told, used_bytes

import gradsync

Answers = list[dict[str, Any]]
Found = dict[str, Any]

PARTS = {"sums": 30.0, "crossing": 12.0, "abort": 20.0, "mapping": 20.0, "killed": 20.0, "end": 8.0}  # seconds, of each
DTYPES = ("float32", "bfloat16")
LARGE = 1_000_003  # elements: several buckets, and no multiple of a vector
PIECE = 2 << 20  # what gradsync.alloc_grad_buffer rounds up to
NORMS = 1e-6  # between those of sums that were added in different orders
BACK = 64 << 20  # bytes that a driver may keep of a GPU
CROSSINGS = 5
UNDER_WAY_S = 0.3  # until what a rank was told has reached the GPU
DECLARE_S = 18.0  # the deadline of a declaration: then it says why the epoch does not begin
STEP_S = 2.0  # the deadline of the step in which a worker is stopped
TOLD_S = 10.0  # and how much later the ranks have to know
SETTINGS = {  # of NCCL, beside a name for each host: sockets alone
    "NCCL_IB_DISABLE": "1",
    "NCCL_MNNVL_ENABLE": "0",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_RAS_ENABLE": "0",
    "NCCL_DEBUG": "WARN",
}
LOST = ("StepTimeout", "NodeLost", "StepFailed")
AGAIN = ("StepFailed", "UnknownBuffer", "StaleEpoch", "NotDeclared")  # behind these a rank declares again
ALONE = ("StepTimeout", "NodeLost", "RankLost", "StaleAttempt")  # behind these it does not
ENDS = (Refused, AssertionError, OSError, ValueError, subprocess.SubprocessError, gradsync.GradsyncError)


def must(holds: object, words: str) -> None:
    if not holds:
        raise Refused(words)


class Job:
    """The ranks of a job over nodes. A new one has not declared."""

    def __init__(self, shape: str, nodes: Nodes, options: argparse.Namespace, stack: contextlib.ExitStack) -> None:
        self.shape = shape
        count, per_node = map(int, shape.split("x"))
        self.world, self.per_node = count * per_node, per_node
        self.declared: dict[str, Any] | None = None
        self._patience = options.patience
        over = (per_node, nodes.coordinator)
        self.ranks = [
            stack.enter_context(
                GpuRank(
                    nodes.address(rank // per_node),
                    f"job-{shape}",
                    rank,
                    self.world,
                    options.gpu,
                    over,
                    GRADSYNC_LIBCUDA=options.driver,
                )
            )
            for rank in range(self.world)
        ]

    def declare(self, **arguments: object) -> None:
        told(self.ranks, "declare", device="cuda", timeout=self._patience * DECLARE_S, **arguments)
        self.declared = arguments

    def of_node(self, node: int) -> list[GpuRank]:
        return self.ranks[node * self.per_node : (node + 1) * self.per_node]

    def until_done(self, seed: int, heard: list[str], before: Answers | None = None) -> Answers:
        """As trainers do that compute the step again when it was lost, and declare again where they were told to, also
        by the answers before. The errors that they hear meanwhile are added to `heard`."""

        def hears(rank: GpuRank, do: str, **arguments: object) -> dict[str, Any]:
            answer = rank.order(do, **arguments)
            heard.extend([f"{do}: {answer['kind']}"] if "kind" in answer else [])
            return answer

        def step(number: int) -> dict[str, Any]:
            rank, answer = self.ranks[number], before[number] if before else {}
            while "norm" not in answer:
                must(answer.get("kind", AGAIN[0]) in AGAIN + ALONE, f"job {self.shape} cannot go on: {answer}")
                if answer.get("kind") in AGAIN:
                    hears(rank, "declare", device="cuda", **(self.declared or {}))
                answer = hears(rank, "step", seed=seed, whole=True)
            return answer

        return whole(on_all(range(self.world), step))


class Scene:
    """Daemons that are nodes, and the jobs over them."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._stack = contextlib.ExitStack()
        self._ranks = contextlib.ExitStack()
        self._workers: set[int] = set()
        count = max(int(shape.split("x")[0]) for shape in options.shapes)
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="gradsync-nodes-")))
        with contextlib.ExitStack() as stack:
            self.nodes = stack.enter_context(
                Nodes(
                    folder,
                    count,
                    *("--gpu-kernels", options.kernels, "--gpu-devices", options.gpu),
                    *("--nccl-library", options.nccl, "--nccl-interface", "lo"),
                    *("--gpu-map-ms", str(options.map_ms)),
                    *("--nccl-max-ctas", str(options.max_ctas), "--nccl-abort-ms", str(options.abort_ms)),
                    before={node: ("env", *settings_of(node, options)) for node in range(count)},
                )
            )
            stack.enter_context(self._ranks)
            # All at once: what takes longest is that each of them imports torch.
            self.jobs = {shape: Job(shape, self.nodes, options, self._ranks) for shape in options.shapes}
            self._stack.push(stack.pop_all())

    def ready(self, shape: str) -> Job:
        """A job that has declared, whatever it was."""
        job = self.jobs[shape]
        if job.declared is None:
            job.declare()
        return job

    def worker(self, node: int) -> int:
        (worker,) = workers_of(self.nodes.daemons[node].process.pid)
        return worker

    def status(self, node: int, job: Job) -> dict[str, Any]:
        with gradsync.connect(self.nodes.address(node)) as client:
            (found,) = [each for each in client.status()["jobs"] if each["job"] == f"job-{job.shape}"]
        return dict(found)

    def used(self) -> int:
        """Bytes of the GPU."""
        for daemon in self.nodes.daemons:
            with contextlib.suppress(FileNotFoundError):  # it has ended
                self._workers.update(workers_of(daemon.process.pid))
        return used_bytes(self._workers, self._options)

    def settled(self, seconds: float = 3.0) -> int:
        """Likewise, when they do not change any more."""
        end = time.monotonic() + seconds
        before, now = -1, self.used()
        while before != now and time.monotonic() < end:
            time.sleep(0.2)
            before, now = now, self.used()
        return now

    def end_ranks(self) -> None:
        self._ranks.close()

    def close(self) -> None:
        self._stack.close()

    def logs(self) -> dict[str, list[str]]:
        """The last lines of each daemon and its worker."""
        found = {}
        for node, daemon in enumerate(self.nodes.daemons):
            if daemon.process.stderr is None or daemon.process.stderr.closed:
                continue
            os.set_blocking(daemon.process.stderr.fileno(), False)
            said = b""
            with contextlib.suppress(BlockingIOError):
                while piece := os.read(daemon.process.stderr.fileno(), 65536):
                    said += piece
            found[f"node{node}"] = said.decode(errors="replace").splitlines()[-20:]
        return found


class OnCpus:
    """What the ranks of one daemon find on CPUs. They are threads of this process."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._ranks: dict[int, list[Program]] = {}
        self._declared: dict[int, dict[str, Any]] = {}

    def steps(self, job: Job, **arguments: object) -> Answers:
        """A step with gradients that are declared as those of this job are."""
        world = job.world
        if world not in self._ranks:
            self._ranks[world] = whole(
                on_all(range(world), lambda rank: Program(self._address, f"cpu-{world}", rank, world))
            )
        ranks = self._ranks[world]
        declared = job.declared or {}
        if self._declared.get(world) != declared:
            whole(on_all(ranks, lambda rank: rank.declare(**declared)))
            self._declared[world] = declared
        return whole(on_all(ranks, lambda rank: rank.step(**arguments)))

    def close(self) -> None:
        for rank in itertools.chain(*self._ranks.values()):
            rank.close()


class Parts:
    """Each takes a scene and says what it found; what is not as it has to be is Refused."""

    def __init__(self, options: argparse.Namespace, on_cpus: OnCpus) -> None:
        self._options, self._on_cpus = options, on_cpus
        self._unused = used_bytes(set(), options)
        self._seeds = itertools.count()

    def _must_be_right(self, job: Job, seed: int, answers: Answers) -> None:
        right = self._on_cpus.steps(job, seed=seed, whole=True)
        must(answers == right, f"job {job.shape}, step of seed {seed}: {answers} instead of {right}")

    def sums(self, scene: Scene, shape: str, found: Found) -> None:
        job = scene.jobs[shape]
        self._declare_measured(scene, job, found)
        for dtype in DTYPES:
            job.declare(large=self._options.large, dtype=dtype)
            norms, same, worst = [], 0, 0.0
            for step in range(self._options.steps):
                seed, is_whole = next(self._seeds), step % 2 == 0
                answers = told(job.ranks, "step", seed=seed, whole=is_whole, exact=True)
                off = max(answer.pop("off", 0.0) for answer in answers)
                right = self._on_cpus.steps(job, seed=seed, whole=is_whole)
                norms.append(answers[0]["norm"])
                same += answers == right
                worst = max(worst, off)
                found[dtype] = {"norms": norms, "steps_with_the_bits_of_cpus": same, "off": worst}
                what = f"{dtype}, step of seed {seed}: {answers}; on CPUs {right}"
                must(all(answer == answers[0] for answer in answers), f"ranks differ: {what}")
                must(answers == right or not is_whole, f"not the bits of CPUs: {what}")
                must(abs(answers[0]["norm"] / right[0]["norm"] - 1) <= NORMS, f"another norm: {what}")
                must(off <= 1, f"{off} times as far from the exact mean as rounding can be: {what}")

    def _declare_measured(self, scene: Scene, job: Job, found: Found) -> None:
        """A small job, so that there is little beside its communicators."""
        told(job.ranks, "probe", memory="torch")  # so that each process has what CUDA takes for itself
        before = scene.settled()
        job.declare()
        after = scene.settled()
        members, names, arenas = 0, set(), 0
        for node in range(job.world // job.per_node):
            status = scene.status(node, job)
            communicators = [each for each in status["communicators"] if each["transport"] == "nccl"]
            members += len(communicators)
            names |= {each["name"] for each in communicators}
            arenas += sum(-(-rank["arena_bytes"] // PIECE) * PIECE for rank in status["ranks"])
        must(members > 0, f"job {job.shape} has no communicator of NCCL")
        found["memory"] = {
            "communicators": sorted(names),
            "members": members,
            "arena_bytes": arenas,
            "bytes_per_member": (after - before - arenas) / members,
        }

    def crossing(self, scene: Scene, found: Found) -> None:
        one, other = (scene.ready(shape) for shape in self._options.shapes[:2])
        for number in range(CROSSINGS):
            seed = next(self._seeds)
            for rank in (*one.of_node(0), *other.of_node(1)):
                rank.tell("step", seed=seed, whole=True)
            time.sleep(UNDER_WAY_S)  # each waits on one node for the other
            began = time.monotonic()
            for rank in (*one.of_node(1), *other.of_node(0)):
                rank.tell("step", seed=seed, whole=True)
            for job in (one, other):
                self._must_be_right(job, seed, [rank.answer() for rank in job.ranks])
            found |= {"crossed": number + 1, "last_s": time.monotonic() - began}

    def abort(self, scene: Scene, found: Found) -> None:
        job, workers = self._small(scene, found)
        with self._stopped(workers[1], job, found):
            pass
        first = found["heard"][0]["error"]
        must("node1" in first, f"the error does not name the node: {first}")
        self._rebuilt(scene, job, workers, found)
        late = " after the ranks were told" if "did not stop" in first else ""
        gone = found["workers"][0] == "replaced"
        found["abort"] = "did not return, so the worker was replaced" if gone else f"returned{late}"

    def mapping(self, scene: Scene, found: Found) -> None:
        job, workers = self._small(scene, found)
        with self._stopped(workers[1], job, found):
            time.sleep(UNDER_WAY_S)
            began = time.monotonic()
            told(scene.jobs[self._options.shapes[1]].of_node(0)[:1], "probe")
            found |= {"mapped_s": time.monotonic() - began}
        self._rebuilt(scene, job, workers, found)

    @contextlib.contextmanager
    def _stopped(self, worker: int, job: Job, found: Found) -> Iterator[None]:
        """The ranks are in a step while the worker of node 1 stands still, until its deadline is over and those of node
        0 know; then the others hear of it, too."""
        os.kill(worker, signal.SIGSTOP)
        try:
            self._tell(job)
            began = time.monotonic()
            yield
            found["heard"] = [rank.answer() for rank in job.of_node(0)]
            found["heard_s"] = time.monotonic() - began
        finally:
            os.kill(worker, signal.SIGCONT)
        found["heard"] += [rank.answer() for rank in job.of_node(1)]
        self._must_know(found)

    def killed(self, scene: Scene, found: Found) -> None:
        job, workers = self._small(scene, found)
        os.kill(workers[1], signal.SIGSTOP)
        self._tell(job)
        time.sleep(UNDER_WAY_S)
        began = time.monotonic()
        os.kill(workers[1], signal.SIGKILL)
        found["heard"] = [rank.answer() for rank in job.ranks]
        found["heard_s"] = time.monotonic() - began
        self._must_know(found)
        self._rebuilt(scene, job, workers, found)
        must(found["workers"][1] == "replaced", f"a killed worker is still there: {workers[1]}")

    def _small(self, scene: Scene, found: Found) -> tuple[Job, list[int]]:
        """The first job, in small, so that its communicators are most of what it has; and the workers by node."""
        job = scene.jobs[self._options.shapes[0]]
        job.declare()
        seed = next(self._seeds)
        self._must_be_right(job, seed, told(job.ranks, "step", seed=seed, whole=True))
        for shape in self._options.shapes[1:]:
            scene.ready(shape)
        found |= {"epoch": scene.status(0, job)["epoch"], "used_bytes": [scene.settled()]}
        return job, [scene.worker(node) for node in range(len(scene.nodes.daemons))]

    def _tell(self, job: Job) -> None:
        seed = next(self._seeds)
        for rank in job.ranks:
            rank.tell("step", seed=seed, whole=True, timeout=STEP_S)

    def _must_know(self, found: Found) -> None:
        kinds = [answer.get("kind") for answer in found["heard"]]
        must(all(kind in LOST for kind in kinds), f"{LOST} were wanted: {found['heard']}")
        within = STEP_S + self._options.told
        must(found["heard_s"] <= within, f"the ranks knew after {found['heard_s']} s instead of {within}")

    def _rebuilt(self, scene: Scene, job: Job, workers: list[int], found: Found) -> None:
        found["used_bytes"].append(scene.settled())
        seed = next(self._seeds)
        began = time.monotonic()
        heard = found["heard_meanwhile"] = []
        self._must_be_right(job, seed, job.until_done(seed, heard, found["heard"]))
        found["rebuilt_s"] = time.monotonic() - began
        for shape in self._options.shapes[1:]:
            other, heard = scene.jobs[shape], []
            before = scene.status(0, other)["epoch"]
            self._must_be_right(other, seed, other.until_done(seed, heard))
            kept = scene.status(0, other)["epoch"] == before
            found.setdefault("others", {})[shape] = {"epoch": "kept" if kept else "another", "heard": heard}
        now = [scene.worker(node) for node in range(len(workers))]
        words = ["kept" if was == are else "replaced" for was, are in zip(workers, now, strict=True)]
        epoch = found["epoch"]
        found |= {"workers": words, "epoch": [epoch, scene.status(0, job)["epoch"]]}
        found["used_bytes"].append(scene.settled())
        must(found["epoch"][1] > epoch, "the epoch of the communicators that failed goes on")
        left = found["used_bytes"][2] - found["used_bytes"][0]
        must(left <= self._options.back, f"{left} bytes of the GPU more than before the communicators were ended")

    def end(self, scene: Scene, found: Found) -> None:
        in_use = scene.settled()
        scene.end_ranks()
        found |= {"in_use_bytes": in_use, "ranks_ended_bytes": scene.settled()}
        scene.close()
        while (left := scene.used() - self._unused) > self._options.back:
            found["daemons_ended_bytes"] = left
            time.sleep(0.1)
        found["daemons_ended_bytes"] = left


def settings_of(node: int, options: argparse.Namespace) -> list[str]:
    own = {**SETTINGS, "NCCL_HOSTID": f"gradsync-node-{node}"}
    return [*(f"{name}={value}" for name, value in own.items()), *options.env]


def version_of(library: str) -> int | str:
    try:
        version = ctypes.c_int()
        code = ctypes.CDLL(library).ncclGetVersion(ctypes.byref(version))
    except (OSError, AttributeError) as error:
        return str(error)
    return version.value if code == 0 else f"ncclGetVersion says {code}"


@contextlib.contextmanager
def overdue_after(seconds: float) -> Iterator[None]:
    def late(*_: object) -> None:
        raise TimeoutError(f"not done within {seconds:.0f} s")

    was = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, was)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", required=True)
    parser.add_argument("--kernels", required=True)
    parser.add_argument("--nccl", required=True)
    parser.add_argument("--driver", default="")
    parser.add_argument("--shapes", default="2x1,2x2,3x1", type=lambda text: text.split(","))
    parser.add_argument("--parts", default=",".join(PARTS), type=lambda text: text.split(","))
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--large", type=int, default=LARGE)
    parser.add_argument("--max-ctas", type=int, default=8)
    parser.add_argument("--map-ms", type=int, default=10_000)
    parser.add_argument("--abort-ms", type=int, default=10_000)
    parser.add_argument("--told", type=float, default=TOLD_S, help="seconds after a step's deadline (default 10)")
    parser.add_argument("--back", type=int, default=BACK, help="bytes that may not come back (default 64 MiB)")
    parser.add_argument("--seconds", type=float, default=60, help="for all parts (default 60)")
    parser.add_argument("--patience", type=float, default=1, help="times as long for each part (default 1)")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="for the daemons")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if not options.shapes[0].startswith("2x") or not set(options.parts) <= set(PARTS):
        parser.error(f"the first shape has two nodes, and parts are {', '.join(PARTS)}")
    if {"crossing", "mapping"} & set(options.parts) and [each[0] for each in options.shapes[:2]] != ["2", "2"]:
        parser.error("crossing and mapping take two jobs over two nodes: name two such shapes first")
    return options


class Run:
    """Part by part, on one scene as long as none fails."""

    def __init__(self, options: argparse.Namespace, parts: Parts) -> None:
        self._options, self._parts = options, parts
        self._last = time.monotonic() + options.seconds
        self._scene: Scene | None = None
        self.results: list[Found] = []

    def say(self, found: Found) -> None:
        self.results.append(found)
        print(json.dumps(found), flush=True)
        # After each: what was found survives a run that is ended early.
        if self._options.json is not None:
            self._options.json.write_text(json.dumps(self.results, indent=1) + "\n", encoding="utf-8")

    def take(self, name: str, *about: str) -> None:
        found: Found = {"part": " ".join((name, *about))}
        began = time.monotonic()
        seconds = min(self._options.patience * PARTS[name], self._last - began)
        try:
            must(seconds > 1, "not reached: the time of all parts is used up")
            with overdue_after(seconds):
                self._scene = self._scene or Scene(self._options)
                getattr(self._parts, name)(self._scene, *about, found)
        except ENDS as error:
            found["failed"] = f"{type(error).__name__}: {error}"
            found["logs"] = {} if self._scene is None else self._scene.logs()
            self.close()
        self.say(found | {"took_s": time.monotonic() - began})

    def close(self) -> None:
        if self._scene is not None:
            self._scene.close()
        self._scene = None


def main() -> int:
    options = parse()
    with Daemon() as daemon, contextlib.ExitStack() as stack:
        on_cpus = stack.enter_context(contextlib.closing(OnCpus(daemon.socket)))
        run = stack.enter_context(contextlib.closing(Run(options, Parts(options, on_cpus))))
        version = version_of(options.nccl)
        run.say(
            {"nccl": version, "max_ctas": options.max_ctas, "shapes": options.shapes}
            | {"settings": [settings_of(node, options) for node in range(2)]}
        )
        for name in options.parts if isinstance(version, int) else ():
            for about in [[shape] for shape in options.shapes] if name == "sums" else [[]]:
                run.take(name, *about)
    return 1 if isinstance(version, str) or any("failed" in result for result in run.results) else 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # the client's end is not what is tested
