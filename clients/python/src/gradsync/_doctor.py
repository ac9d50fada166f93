"""`gradsync doctor`: what the daemon finds on its node, and whether it sees the GPUs that this process sees."""

from __future__ import annotations

import argparse
import importlib.util
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from ._client import Client, connect
from ._command_parser import AddParser, add_command
from ._gpu._driver import driver
from .errors import ConnectionFailed, MethodNotFound, NoGpu

__all__ = ["Finding", "add_doctor", "compare_gpus", "examine", "torch_findings"]

_CONNECT_S = 2.0
_EXAMINE_S = 150.0  # the daemon ends an examination after 60 s; one that ran before delays it by twice as much
_EPILOG = """\
Run it as the training script is run: in its container, with its CUDA_VISIBLE_DEVICES and in its environment of Python.

exit code: 0 when nothing is a problem, 1 when something is, 2 when nothing could be examined (no daemon, for instance).
"""
_ONLY_HERE = (
    "the daemon has to see it too: give its container this device (docker --gpus, NVIDIA_VISIBLE_DEVICES of the nvidia "
    "runtime, DRA), and name it in [gpu] devices where that is set, or where it is an instance of MIG"
)
_ONLY_THERE = (
    "nothing has to be done where other processes train on it; else CUDA_VISIBLE_DEVICES hides it from this one, or "
    "its container lacks the device (docker --gpus, NVIDIA_VISIBLE_DEVICES of the nvidia runtime, DRA)"
)


@dataclass(frozen=True, slots=True)
class Finding:
    """A thing that was looked at, as the daemon says it too."""

    level: str  #: ok, note or problem
    what: str
    hint: str = ""


def add_doctor(add: AddParser) -> None:
    parser = add_command(
        add,
        "doctor",
        _doctor,
        help="look for what keeps a daemon from serving this process, and say what to do",
        description="Has the daemon examine its node, and compares the GPUs that it sees with those of this process.",
        epilog=_EPILOG,
    )
    parser.add_argument("--address", help="path of its socket (default: $GRADSYNC_ADDRESS, then the usual places)")
    parser.add_argument("--json", action="store_true", help="as JSON: a list of level, what and hint")


def _doctor(options: argparse.Namespace) -> int:
    with connect(options.address, timeout=_CONNECT_S) as client:
        findings = examine(client)
    if options.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2, ensure_ascii=False))
    else:
        for finding in findings:
            print(f"{finding.level:<8} {finding.what}")
            if finding.hint:
                print(f"{'':<8} {finding.hint}")
    return 1 if any(finding.level == "problem" for finding in findings) else 0


def examine(client: Client) -> list[Finding]:
    """What the daemon finds, and then what this process finds beside it.

    Raises:
        ConnectionFailed: the daemon is older than this client.
        DoctorFailed: it could not examine its node.
    """
    try:
        answer = client.call("doctor.run", timeout=_EXAMINE_S)
    except MethodNotFound as error:
        raise ConnectionFailed(
            "version",
            f"gradsyncd {client.server['version']} at {client.address} is older than this client and has no "
            "doctor.run: install the same release of both, or run `gradsyncd doctor` where the daemon runs",
            client.address,
        ) from error
    findings = [Finding(found["level"], found["what"], found["hint"]) for found in answer["findings"]]
    return findings + _of_this_process(answer["gpus"])


def _of_this_process(daemons: Sequence[str]) -> list[Finding]:
    try:
        calls = driver()
        gpus = calls.uuids()
    except NoGpu as error:
        return compare_gpus([], daemons, why=error.message)
    findings = compare_gpus(gpus, daemons)
    if gpus and calls.device_type == "cuda":
        findings += torch_findings()
    return findings


def compare_gpus(here: Sequence[str], daemons: Sequence[str], why: str = "it has none") -> list[Finding]:
    """One finding for each GPU that this process or the daemon sees; `why` this process sees none."""
    findings = [] if here else [Finding("note", f"this process sees no GPU: {why}", "gradients on CPUs are served")]
    for gpu in here:
        if gpu in daemons:
            findings.append(Finding("ok", f"this process and the daemon both see {gpu}"))
        else:
            findings.append(Finding("problem", f"this process sees {gpu}, and the daemon does not", _ONLY_HERE))
    for gpu in daemons:
        if gpu not in here:
            findings.append(Finding("note", f"the daemon sees {gpu}, and this process does not", _ONLY_THERE))
    return findings


def torch_findings() -> list[Finding]:
    """Whether torch, where it is installed, uses the GPUs that the driver shows."""
    if importlib.util.find_spec("torch") is None:
        return []
    try:
        import torch
    except (ImportError, OSError) as error:  # a library of CUDA that it needs is missing, for instance
        return [Finding("problem", f"torch cannot be imported: {error}", "install torch anew, with what it needs")]

    if torch.cuda.is_available():
        return [Finding("ok", f"torch {torch.__version__} uses the GPUs of this process")]
    if torch.version.cuda is None:
        why, hint = "it is built for CPUs", "install a torch that is built for CUDA"
    else:
        why = f"it is built for CUDA {torch.version.cuda}, and cannot use the driver"
        hint = "install a newer driver, or a torch for an older CUDA"
    return [Finding("problem", f"torch {torch.__version__} uses no GPU of this process: {why}", hint)]
