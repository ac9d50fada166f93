"""`gradsync doctor`: what the daemon finds on its node, and what this process finds beside it."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_daemon import FakeDaemon, Fault
from real_daemon import built_library

from gradsync import _doctor
from gradsync._cli import main
from gradsync._doctor import Finding, compare_gpus, torch_findings
from gradsync._gpu import _driver
from gradsync._wire_errors import local_error
from gradsync.errors import NoGpu

UUIDS = ["GPU-5a4d2c1e-0000-4000-8000-00000000000a", "GPU-5a4d2c1e-0000-4000-8000-00000000000b"]
FOUND = {"level": "ok", "what": "file descriptors: 1024", "hint": ""}


def no_driver() -> Any:
    raise local_error(NoGpu, "the driver of NVIDIA cannot be loaded", "a hint")


@pytest.fixture
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_doctor, "driver", no_driver)


@pytest.fixture
def with_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(UUIDS))
    emulated = _driver.Driver(str(built_library("libcuda_fake.so")))
    monkeypatch.setattr(_doctor, "driver", lambda: emulated)


def answers(daemon: FakeDaemon, *findings: dict[str, str], gpus: list[str] | None = None) -> None:
    well = all(finding["level"] != "problem" for finding in findings)
    daemon.script["doctor.run"] = lambda params: {"findings": list(findings), "well": well, "gpus": gpus or []}


def test_findings_of_the_daemon_come_first_and_all_is_well(
    daemon: FakeDaemon, without_gpu: None, capsys: pytest.CaptureFixture[str]
) -> None:
    answers(daemon, FOUND, {"level": "note", "what": "MPS runs", "hint": "use it on both sides"})
    assert main(["doctor", "--address", daemon.path]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "ok       file descriptors: 1024",
        "note     MPS runs",
        "         use it on both sides",
        "note     this process sees no GPU: the driver of NVIDIA cannot be loaded",
        "         gradients on CPUs are served",
    ]


def test_json_is_the_same_list(daemon: FakeDaemon, without_gpu: None, capsys: pytest.CaptureFixture[str]) -> None:
    answers(daemon, FOUND)
    assert main(["doctor", "--json", "--address", daemon.path]) == 0
    findings = json.loads(capsys.readouterr().out)
    assert findings[0] == FOUND
    assert [set(finding) for finding in findings] == [{"level", "what", "hint"}] * 2


def test_a_problem_of_the_daemon_is_one_here(
    daemon: FakeDaemon, without_gpu: None, capsys: pytest.CaptureFixture[str]
) -> None:
    answers(daemon, {"level": "problem", "what": "the driver lists no GPU", "hint": "give it one"})
    assert main(["doctor", "--address", daemon.path]) == 1
    assert "problem  the driver lists no GPU\n         give it one\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("theirs", "code", "levels"),
    [
        (UUIDS, 0, ["ok", "ok"]),
        (UUIDS[:1], 1, ["ok", "problem"]),
        ([], 1, ["problem", "problem"]),
        ([*UUIDS, "GPU-other"], 0, ["ok", "ok", "note"]),
    ],
)
def test_uuids_of_both_sides_are_compared(
    daemon: FakeDaemon,
    with_gpus: None,
    capsys: pytest.CaptureFixture[str],
    theirs: list[str],
    code: int,
    levels: list[str],
) -> None:
    answers(daemon, FOUND, gpus=theirs)
    assert main(["doctor", "--json", "--address", daemon.path]) == code
    found = json.loads(capsys.readouterr().out)[1:]
    assert [finding["level"] for finding in found] == levels
    for finding, gpu in zip(found, [*UUIDS, "GPU-other"], strict=False):
        assert gpu in finding["what"]
        assert bool(finding["hint"]) == (finding["level"] != "ok")


def test_only_the_gpus_that_are_visible_are_those_of_this_process(
    daemon: FakeDaemon, with_gpus: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # The emulated driver reads the environment of C, which os.environ changes too.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", UUIDS[1])
    answers(daemon, gpus=UUIDS)
    assert main(["doctor", "--address", daemon.path]) == 0
    out = capsys.readouterr().out
    assert f"ok       this process and the daemon both see {UUIDS[1]}\n" in out
    assert f"note     the daemon sees {UUIDS[0]}, and this process does not\n" in out
    assert "CUDA_VISIBLE_DEVICES" in out


def test_a_driver_that_fails_is_a_process_without_gpus(
    daemon: FakeDaemon, with_gpus: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GRADSYNC_FAKE_CUDA_FAILS", "cuDeviceGetCount=3")
    answers(daemon, gpus=UUIDS[:1])
    assert main(["doctor", "--address", daemon.path]) == 0
    out = capsys.readouterr().out
    assert "note     this process sees no GPU: cuDeviceGetCount: CUDA_ERROR_EMULATED (CUDA error 3)\n" in out
    assert f"note     the daemon sees {UUIDS[0]}, and this process does not\n" in out


def test_a_hint_says_what_can_hide_a_gpu_from_either_side() -> None:
    here, there = compare_gpus(["GPU-1"], ["GPU-2"])
    for word in ("container", "NVIDIA_VISIBLE_DEVICES", "[gpu] devices", "MIG"):
        assert word in here.hint
    for word in ("container", "NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        assert word in there.hint


def test_an_older_daemon_is_named(daemon: FakeDaemon, without_gpu: None, capsys: pytest.CaptureFixture[str]) -> None:
    def unknown(params: dict[str, Any]) -> Any:
        raise Fault("method_not_found", 'no method "doctor.run"', code=-32601)

    daemon.script["doctor.run"] = unknown
    assert main(["doctor", "--address", daemon.path]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "is older than this client and has no doctor.run" in said.err
    assert "install the same release" in said.err
    assert "`gradsyncd doctor`" in said.err


@pytest.mark.parametrize("kind", ["doctor_failed", "limit_exceeded", "draining"])
def test_an_examination_that_fails_is_no_finding(
    daemon: FakeDaemon, without_gpu: None, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    def fails(params: dict[str, Any]) -> Any:
        raise Fault(kind, "the doctor (pid 4711) did not end within 60000 ms and was killed")

    daemon.script["doctor.run"] = fails
    assert main(["doctor", "--address", daemon.path]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.strip()) == (
        "",
        f"the doctor (pid 4711) did not end within 60000 ms and was killed; scripted hint (gradsyncd explain {kind})",
    )


def test_without_a_daemon_the_error_is_that_of_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_doctor, "_CONNECT_S", 0.2)
    monkeypatch.setattr("gradsync._cli.connect", lambda address, timeout: _doctor.connect(address, timeout=0.2))
    nowhere = str(tmp_path / "nowhere.sock")
    assert main(["status", "--address", nowhere]) == 1
    status = capsys.readouterr().err
    assert main(["doctor", "--address", nowhere]) == 2
    assert capsys.readouterr().err == status
    assert nowhere in status


def fake_torch(available: bool, cuda: str | None) -> Any:
    return SimpleNamespace(
        __version__="2.9.0",
        __spec__=importlib.util.find_spec("json"),
        cuda=SimpleNamespace(is_available=lambda: available),
        version=SimpleNamespace(cuda=cuda),
    )


@pytest.mark.parametrize(
    ("available", "cuda", "level", "said"),
    [
        (True, "13.0", "ok", "uses the GPUs"),
        (False, None, "problem", "it is built for CPUs"),
        (False, "13.0", "problem", "it is built for CUDA 13.0, and cannot use the driver"),
    ],
)
def test_a_torch_that_cannot_use_the_gpus_is_a_problem(
    monkeypatch: pytest.MonkeyPatch, available: bool, cuda: str | None, level: str, said: str
) -> None:
    monkeypatch.setitem(sys.modules, "torch", fake_torch(available, cuda))
    (found,) = torch_findings()
    assert found.level == level
    assert said in found.what
    assert bool(found.hint) == (level == "problem")


def test_torch_is_looked_at_where_a_real_driver_shows_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", fake_torch(False, None))
    monkeypatch.setattr(_doctor, "driver", lambda: SimpleNamespace(device_type="cuda", uuids=lambda: ["GPU-1"]))
    found = _doctor._of_this_process(["GPU-1"])
    assert [finding.level for finding in found] == ["ok", "problem"]
    assert found[0] == Finding("ok", "this process and the daemon both see GPU-1")


def test_a_torch_that_cannot_be_imported_is_a_problem_and_not_the_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "torch.py").write_text('raise OSError("libcudart.so.13: cannot open shared object file")\n')
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    (found,) = torch_findings()
    assert found.level == "problem"
    assert "libcudart.so.13" in found.what
