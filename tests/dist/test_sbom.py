"""The bills of materials of `make dist`: what is in the daemon is in them, with version and licence."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "dist"
BUILD = ROOT / "build" / "cpu-release"
Document = dict[str, Any]


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sbom", ROOT / "scripts" / "dist" / "sbom.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["sbom"] = module  # its dataclass looks itself up there
    spec.loader.exec_module(module)
    return module


SBOM = script()


@pytest.fixture(scope="module", params=["gradsync", "gradsyncd"])
def document(request: pytest.FixtureRequest) -> Document:
    return dict(json.loads((FOLDER / f"{request.param}.cdx.json").read_text()))


def libraries(document: Document) -> list[Document]:
    """Those of Debian."""
    return [
        component
        for component in document["components"]
        if component["type"] == "library" and component["purl"].startswith("pkg:deb/")
    ]


def linked(component: Document) -> str:
    (value,) = [entry["value"] for entry in component["properties"] if entry["name"] == "gradsync:linked"]
    return str(value)


def test_it_is_what_the_specification_asks_for(document: Document) -> None:
    assert (document["bomFormat"], document["specVersion"], document["version"]) == ("CycloneDX", "1.6", 1)
    assert re.fullmatch(
        r"urn:uuid:[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", document["serialNumber"]
    )
    about = document["metadata"]["component"]
    refs = [about["bom-ref"], *(component["bom-ref"] for component in document["components"])]
    assert len(set(refs)) == len(refs)
    edges = {entry["ref"]: set(entry.get("dependsOn", [])) for entry in document["dependencies"]}
    assert set(edges) == set(refs)
    reached = {about["bom-ref"]}
    while more := {other for ref in reached for other in edges[ref]} - reached:
        reached |= more
    assert reached == set(refs)


def test_each_library_has_a_licence_and_the_version_that_is_installed_here(document: Document) -> None:
    for component in libraries(document):
        (licence,) = component["licenses"]
        assert licence["expression"]
        assert re.fullmatch(r"pkg:deb/debian/\S+@\S+\?arch=(all|amd64|arm64)&distro=[a-z]+", component["purl"])
        asked = ["dpkg-query", "-W", "-f", "${Version}", component["name"]]
        assert component["version"] == subprocess.run(asked, capture_output=True, text=True, check=True).stdout


def test_every_shared_library_of_the_daemon_is_in_it(document: Document) -> None:
    text = subprocess.run(
        ["readelf", "--dynamic", BUILD / "bin" / "gradsyncd"], capture_output=True, text=True, check=True
    ).stdout
    of_the_system = re.compile(r"(libc|libm|libstdc\+\+|libgcc_s|ld-linux.*)\.so\.\d+")
    needed = {name for name in re.findall(r"\(NEEDED\).*\[(.*)\]", text) if not of_the_system.fullmatch(name)}
    assert needed
    named = {word for component in libraries(document) for word in linked(component).split()}
    assert needed <= named


def test_what_is_compiled_in_is_in_it(document: Document) -> None:
    headers = {component["name"] for component in libraries(document) if linked(component) == "headers"}
    wanted = ["libboost", "nlohmann-json3-dev", "libspdlog-dev", "libcli11-dev", "libhwy-dev", "libstdc++"]
    assert not [name for name in wanted if not any(found.startswith(name) for found in headers)]
    assert not [name for name in headers if "gtest" in name or "gmock" in name or "benchmark" in name]


def test_it_names_the_daemon_with_its_commit(document: Document) -> None:
    said = subprocess.run([BUILD / "bin" / "gradsyncd", "version", "--json"], capture_output=True, check=True).stdout
    version = json.loads(said)
    (daemon,) = [
        component
        for component in [document["metadata"]["component"], *document["components"]]
        if component["name"] == "gradsyncd"
    ]
    assert daemon["version"] == version["version"]
    assert daemon["properties"] == [{"name": "gradsync:commit", "value": version["commit"]}]


def test_the_wheel_has_the_same_bill_beside_that_of_auditwheel() -> None:
    (wheel,) = FOLDER.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (ours,) = [name for name in archive.namelist() if name.endswith(".dist-info/sboms/gradsync.cdx.json")]
        folder = ours.rpartition("/")[0]
        assert archive.read(ours) == (FOLDER / "gradsync.cdx.json").read_bytes()
        copied = json.loads(archive.read(f"{folder}/auditwheel.cdx.json"))
        record = archive.read(f"{folder.rpartition('/')[0]}/RECORD").decode()
    assert f"{ours},sha256=" in record
    purls = {component["purl"].partition("?")[0] for component in copied["components"]}
    document = json.loads((FOLDER / "gradsync.cdx.json").read_text())
    shared = {one["purl"].partition("?")[0] for one in libraries(document) if linked(one) != "headers"}
    assert shared <= purls


def test_the_cuda_runtime_is_in_the_bill_of_a_wheel_with_kernels() -> None:
    (wheel,) = FOLDER.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        kernels = any(name.endswith("/libgradsync_kernels.so") for name in archive.namelist())
    document = json.loads((FOLDER / "gradsync.cdx.json").read_text())
    found = [component for component in document["components"] if component["name"] == "CUDA runtime"]
    assert [component["version"].startswith("13.") for component in found] == ([True] if kernels else [])
    assert not [one for one in json.loads((FOLDER / "gradsyncd.cdx.json").read_text())["components"] if one in found]


def test_a_package_without_a_known_licence_is_refused_by_name() -> None:
    part = SBOM.Part("libnew1", "1.0-1", "new", "amd64", "libnew.so.1", "debian bookworm")
    with pytest.raises(SBOM.Unknown, match=r"libnew1 1\.0-1.*add 'new' to LICENCES"):
        _ = part.licence


def test_a_file_of_no_package_is_refused_by_name(tmp_path: Path) -> None:
    stray = tmp_path / "stray.hpp"
    stray.touch()
    with pytest.raises(SBOM.Unknown, match=r"stray\.hpp"):
        SBOM.owners_of([str(stray)])


def test_a_folder_that_ninja_did_not_build_in_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SBOM.Unknown, match="is not the folder in which Ninja built"):
        SBOM.headers_of(tmp_path)
