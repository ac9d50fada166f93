"""deploy/slurm/gradsync.sbatch on two "nodes" of this machine, with stand-ins for srun, scontrol and torchrun."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from daemon_words import BINARY, DEADLINE_S, clean_environment
from manifests import ROOT

SCRIPT = ROOT / "deploy/slurm/gradsync.sbatch"
# Starts the step's command once for each node; a node has an address of its own. A signal is passed on to all.
SRUN = """
import os, signal, subprocess, sys
known = {"--nodes": 2, "--ntasks-per-node": 2, "--kill-on-bad-exit=1": 1}
words = sys.argv[1:]
options = {}
while words[0] in known:
    options[words[0]] = words[1]
    words = words[known[words[0]]:]
nodes = []
for number in range(int(options["--nodes"])):
    listen = f"127.0.0.{number + 1}:{os.environ['PEERS_PORT']}"
    own = {"SLURM_NODEID": str(number), "GRADSYNC_PEER_LISTEN": listen}
    nodes.append(subprocess.Popen(words, env={**os.environ, **own}))
signal.signal(signal.SIGTERM, lambda *_: [node.send_signal(signal.SIGTERM) for node in nodes])
sys.exit(max(node.wait() for node in nodes))
"""
SCONTROL = """
import sys
assert sys.argv[1:] == ["show", "hostnames", "node[1-2]"]
print("node1\\nnode2")
"""
# Writes down what it was given and what it sees of the daemon; then it ends, or waits for a signal.
TORCHRUN = """
import json, os, pathlib, signal, subprocess, sys, urllib.error, urllib.request
folder = pathlib.Path(os.environ["REPORTS"])
token = pathlib.Path(os.environ["GRADSYNC_PEER_TOKEN_FILE"])
status = subprocess.run([os.environ["GRADSYNCD"], "status", "--json"], capture_output=True, text=True).stdout
try:
    urllib.request.urlopen(f"http://{os.environ['GRADSYNC_PEER_LISTEN']}/peer")
except urllib.error.HTTPError as error:
    refused = error.code
report = {"words": sys.argv[1:], "address": os.environ["GRADSYNC_ADDRESS"], "mode": oct(token.stat().st_mode),
          "token": token.read_text(), "state": json.loads(status)["state"], "without_token": refused}
def end(*_):
    sys.exit(5)
signal.signal(signal.SIGTERM, end)
path = folder / f"{os.environ['SLURM_NODEID']}.json"
path.with_suffix(".partial").write_text(json.dumps(report))
path.with_suffix(".partial").rename(path)
print("reported", flush=True)
if "wait" in sys.argv:
    signal.pause()
sys.exit(int(sys.argv[-1]))
"""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    programs = tmp_path / "bin"
    programs.mkdir()
    bodies = {"srun": SRUN, "scontrol": SCONTROL, "torchrun": TORCHRUN}
    bodies["gradsync"] = "import sys\nfrom gradsync._cli import main\nsys.exit(main())\n"
    for name, body in bodies.items():
        (programs / name).write_text(f"#!{sys.executable}\n{body}")
        (programs / name).chmod(0o755)
    (tmp_path / "reports").mkdir()
    return clean_environment(
        PATH=f"{programs}:/usr/bin:/bin",
        GRADSYNCD=BINARY,
        HOME=str(tmp_path),
        REPORTS=str(tmp_path / "reports"),
        PEERS_PORT=str(free_port()),
        SLURM_JOB_ID="123456",
        SLURM_JOB_NUM_NODES="2",
        SLURM_JOB_NODELIST="node[1-2]",
        SLURM_GPUS_ON_NODE="8",
    )


def start(environment: dict[str, str], *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [SCRIPT, *words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/"
    )


def reports(environment: dict[str, str]) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(Path(environment["REPORTS"]).glob("*.json"))]


def test_each_node_has_a_daemon_that_knows_the_others_token(environment: dict[str, str]) -> None:
    process = start(environment, "train.py", "--epochs", "3", "a b", "0")
    _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, errors
    first, second = reports(environment)
    where = ["--nproc-per-node", "8", "--master-addr", "node1", "--master-port", str(20000 + 123456 % 20000)]
    script = ["train.py", "--epochs", "3", "a b", "0"]
    assert first["words"] == ["--nnodes", "2", "--node-rank", "0", *where, *script]
    assert second["words"] == ["--nnodes", "2", "--node-rank", "1", *where, *script]
    assert first["address"] != second["address"]
    for report in (first, second):
        assert report["state"] == "serving"
        assert report["without_token"] == 401  # it listens, and wants the token
        assert report["mode"] == "0o100600"
    assert first["token"] == second["token"]
    assert len(first["token"]) > 40
    assert list((Path(environment["HOME"]) / ".gradsync").iterdir()) == []


def test_the_exit_code_is_that_of_the_training(environment: dict[str, str]) -> None:
    process = start(environment, "train.py", "3")
    process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 3


def test_the_warning_before_the_limit_of_time_reaches_the_trainers(environment: dict[str, str]) -> None:
    process = start(environment, "train.py", "wait", "0")
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["reported\n"] * 2
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 5, errors
    assert list((Path(environment["HOME"]) / ".gradsync").iterdir()) == []


def test_it_says_what_it_needs(environment: dict[str, str]) -> None:
    process = start(environment)
    _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 64
    assert "usage: sbatch" in errors
    del environment["SLURM_JOB_ID"]
    process = start(environment, "train.py")
    _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1
    assert "which sbatch starts" in errors
