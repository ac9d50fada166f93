"""Every flag, variable, port, path and probe of a manifest or of the image is one that the binary at hand knows."""

from __future__ import annotations

import http.client
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from daemon_words import (
    BINARY,
    DEADLINE_S,
    clean_environment,
    file_with_token,
    peers_port,
    port_of,
    run,
    settings,
    variables_of_the_client,
)
from manifests import EXAMPLES, OVERLAYS, ROOT, Document, containers_of, documents_of, environment_of, pods_of, words_of

ALL = [*OVERLAYS, *EXAMPLES]
PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


def all_containers() -> Iterator[tuple[str, Document, Document]]:
    for name in ALL:
        for pod in pods_of(name):
            for container in containers_of(pod):
                yield name, pod, container


def daemon_environment(container: Document) -> dict[str, str]:
    return {name: value for name, value in environment_of(container).items() if name in settings()}


def runs_a_daemon(container: Document) -> bool:
    return words_of(container)[:1] == ["gradsyncd"] or words_of(container)[:2] == ["gradsync", "run"]


def test_the_settings_are_those_of_the_binary() -> None:
    assert settings()["GRADSYNC_SERVER_HEALTH"] == "127.0.0.1:9477"
    assert "GRADSYNC_ADDRESS" in variables_of_the_client()
    assert "GRADSYNC_ADDRESS" not in settings()


def test_every_variable_is_known() -> None:
    seen = set()
    for name, _, container in all_containers():
        ours = {variable for variable in environment_of(container) if variable.startswith("GRADSYNC_")}
        daemon_is_here = runs_a_daemon(container)
        known = set(settings()) if daemon_is_here else variables_of_the_client()
        assert ours <= known, f"{name}: {container['name']} has {sorted(ours - known)}"
        assert daemon_is_here or "GRADSYNC_ADDRESS" in ours or container["name"] == "folder"
        seen |= ours
    assert {"GRADSYNC_ADDRESS", "GRADSYNC_PEER_LISTEN", "GRADSYNC_ENGINE_THREADS"} <= seen


def test_every_value_is_one_that_the_daemon_takes(tmp_path: Path) -> None:
    token = str(file_with_token(tmp_path))
    checked = set()
    for _, _, container in all_containers():
        if not runs_a_daemon(container):
            continue
        variables = daemon_environment(container)
        if tuple(sorted(variables.items())) in checked:
            continue
        checked.add(tuple(sorted(variables.items())))
        if "GRADSYNC_PEER_TOKEN_FILE" in variables:
            variables["GRADSYNC_PEER_TOKEN_FILE"] = token
        done = run("gradsyncd", "check-config", "/dev/null", **variables)
        assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
    assert len(checked) >= 4
    assert run("gradsyncd", "check-config", "/dev/null", GRADSYNC_ENGINE_THREADS="many").returncode == 78


def test_every_command_is_known() -> None:
    checked = set()
    for _, _, container in all_containers():
        words = words_of(container)
        if words[:1] not in (["gradsyncd"], ["gradsync"]):
            assert words[:1] in ([], ["torchrun"], ["sh"])  # none: a TrainJob's
            continue
        own = tuple(words[: words.index("--")] if "--" in words else words)
        if own not in checked:
            checked.add(own)
            assert run(*own, "--help").returncode == 0, own
    assert checked == {("gradsyncd", "serve"), ("gradsync", "run"), ("gradsync", "observe")}
    assert run("gradsyncd", "served").returncode == 64


@pytest.mark.parametrize("name", ALL)
def test_ports_are_where_the_daemon_listens(name: str) -> None:
    for pod in pods_of(name):
        for container in containers_of(pod):
            variables = daemon_environment(container)
            ports = {port["name"]: port["containerPort"] for port in container.get("ports", [])}
            listens = {}
            if "GRADSYNC_SERVER_HEALTH" in variables:
                listens["health"] = port_of(variables["GRADSYNC_SERVER_HEALTH"])
                assert variables["GRADSYNC_SERVER_HEALTH"].startswith("0.0.0.0:")  # a probe comes from the machine
            if "GRADSYNC_PEER_LISTEN" in variables:
                listens["peers"] = port_of(variables["GRADSYNC_PEER_LISTEN"])
                # All daemons of a job have one port, which members take for the coordinator's.
                assert listens["peers"] == peers_port()
            assert ports == listens
    for document in documents_of(name):
        if document["kind"] == "Service":
            assert [port["port"] for port in document["spec"]["ports"]] == [peers_port()]
        if document["kind"] in ("NetworkPolicy", "PodMonitor"):
            assert named_ports(document["spec"]) <= {"health"}


def named_ports(part: Any) -> set[str]:
    if isinstance(part, list):
        return set().union(*map(named_ports, part))
    if isinstance(part, dict):
        return {part["port"]} if "port" in part else set().union(*map(named_ports, part.values()))
    return set()


@pytest.mark.parametrize("name", ALL)
def test_the_socket_lies_in_the_volume_that_both_sides_have(name: str) -> None:
    for pod in pods_of(name):
        addresses = {environment_of(one).get("GRADSYNC_ADDRESS") for one in containers_of(pod)} - {None}
        sockets = {environment_of(one).get("GRADSYNC_SERVER_SOCKET") for one in containers_of(pod)} - {None}
        if sockets and addresses:
            assert addresses == {f"unix:{socket}" for socket in sockets}
        for container in containers_of(pod):
            mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
            for variable, value in environment_of(container).items():
                path = value.removeprefix("unix:")
                if variable.startswith("GRADSYNC_") and path.startswith("/"):
                    (mount,) = (one for place, one in mounts.items() if path.startswith(f"{place}/"))
                    reads = variable in ("GRADSYNC_ADDRESS", "GRADSYNC_PEER_TOKEN_FILE")
                    assert mount.get("readOnly", False) is reads, variable


@pytest.mark.parametrize("name", ALL)
def test_a_pod_is_given_the_time_of_a_drain(name: str) -> None:
    drain_ms = settings()["GRADSYNC_DEADLINES_DRAIN_MS"]
    assert isinstance(drain_ms, int)
    for pod in pods_of(name):
        if any(runs_a_daemon(container) for container in containers_of(pod)):
            assert pod["spec"]["terminationGracePeriodSeconds"] >= drain_ms / 1000 + 10


def probed_paths() -> set[str]:
    found = set()
    for name, _, container in all_containers():
        for kind in PROBES:
            if kind in container:
                probe = container[kind]
                assert probe["httpGet"]["port"] == "health", name
                assert probe["timeoutSeconds"] >= 5, "a loaded machine answers late"
                found.add(probe["httpGet"]["path"])
    endpoints = [
        endpoint
        for document in documents_of("examples/yours")
        if document["kind"] == "PodMonitor"
        for endpoint in document["spec"]["podMetricsEndpoints"]
    ]
    return found | {endpoint["path"] for endpoint in endpoints}


def status_of(port: int, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    connection.request("GET", path, headers={"Host": "10.1.2.3:9477"})  # as kubelet and Prometheus address a pod
    return connection.getresponse().status


def test_every_probe_and_the_metrics_are_answered_by_the_sidecar(tmp_path: Path) -> None:
    """The daemon starts as in the sidecar's container, but for its ports; the folder is as kubelet makes it."""
    assert probed_paths() == {"/startupz", "/livez", "/readyz", "/metrics"}
    (pod,) = pods_of("overlays/cpu/sidecar")
    (sidecar,) = pod["spec"]["initContainers"]
    folder = tmp_path / "run"
    folder.mkdir()
    folder.chmod(0o2777)  # of a pod with an fsGroup
    variables = {
        **daemon_environment(sidecar),
        "GRADSYNC_SERVER_SOCKET": str(folder / "gradsync.sock"),
        "GRADSYNC_SERVER_HEALTH": "0.0.0.0:0",
        "GRADSYNC_PEER_LISTEN": "0.0.0.0:0",
        "GRADSYNC_PEER_TOKEN_FILE": str(file_with_token(tmp_path)),
    }
    command = [BINARY, *words_of(sidecar)[1:]]
    process = subprocess.Popen(command, env=clean_environment(**variables), stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        serving = process.stderr.readline()
        said = re.search(r'health=[^ "]*:(\d+) .*peer=[^ "]*:\d+ threads=1\b', serving)
        assert said is not None, serving
        for path in probed_paths():
            assert status_of(int(said[1]), path) == 200, path
        assert status_of(int(said[1]), "/notapage") == 404
        found = run("gradsyncd", "status", "--json", GRADSYNC_ADDRESS=f"unix:{folder}/gradsync.sock")
        assert '"state":"serving"' in found.stdout, found.stderr
    finally:
        process.terminate()
        assert process.wait(DEADLINE_S) == 0
        process.stderr.close()


def test_the_alerts_and_the_dashboard_know_the_pods_by_the_name_of_their_job() -> None:
    (monitor,) = (one for one in documents_of("examples/yours") if one["kind"] == "PodMonitor")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    named = {one["replacement"] for one in endpoint["relabelings"] if one["targetLabel"] == "job"}
    files = [path for folder in ("prometheus", "grafana") for path in (ROOT / "deploy" / folder).iterdir()]
    asked = {name for path in files for name in re.findall(r'\bjob="(\w+)"', path.read_text().replace('\\"', '"'))}
    assert asked == named == {"gradsync"}


def test_the_image_has_variables_and_ports_that_are_known() -> None:
    dockerfile = (ROOT / "deploy/docker/Dockerfile").read_text()
    named = set(re.findall(r"\b(GRADSYNC_[A-Z_]+)=", re.sub(r"-D\w+", "", dockerfile)))
    assert named
    assert named <= set(settings())
    health = settings()["GRADSYNC_SERVER_HEALTH"]
    assert isinstance(health, str)
    assert f"EXPOSE {port_of(health)} {peers_port()}\n" in dockerfile
