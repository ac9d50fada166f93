"""The bills of materials of a wheel and of the daemon in it, as CycloneDX: sbom.py BUILD_FOLDER WHEEL. Without a wheel,
it prints the daemon's.

What was compiled in is read from the compiler's own list of headers (`ninja -t deps`), and what is linked from the
loader; dpkg says which package each file is of, in which version. So a new dependency is in the bill, or is refused
here until its licence is known. auditwheel's bill stays: it is the one that says which files it has copied.

Writes `gradsync.cdx.json` into the wheel, and beside the wheel; `gradsyncd.cdx.json`, for the daemon alone, beside it.
The same build gives the same bytes: the date is $SOURCE_DATE_EPOCH.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import uuid
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

ROOT = Path(__file__).resolve().parents[2]
# By Debian source package: the licence of what gets into the daemon, as SPDX has it. /usr/share/doc has the words.
LICENCES = {
    "boost1.81": "BSL-1.0",
    "cli11": "BSD-3-Clause",
    "fmtlib": "MIT",
    "gcc-12": "GPL-3.0-or-later WITH GCC-exception-3.1",
    "glibc": "LGPL-2.1-or-later",
    "highway": "Apache-2.0",
    "linux": "GPL-2.0-only WITH Linux-syscall-note",
    "nlohmann-json3": "MIT",
    "prometheus-cpp": "MIT",
    "spdlog": "MIT",
    "tomlplusplus": "MIT",
    "xxhash": "BSD-2-Clause",
}
# What each distribution has, and the wheel has not.
OF_THE_SYSTEM = re.compile(r"(libc|libm|libstdc\+\+|libgcc_s|ld-linux[a-z0-9-]*)\.so\.\d+")

Document = dict[str, Any]


class Unknown(Exception):
    """Something that is in the daemon cannot be named in the bill."""


@dataclass(frozen=True, slots=True)
class Part:
    """A Debian package of which something is in the daemon."""

    package: str
    version: str
    source: str
    architecture: str
    linked: str  # "headers", or the names of shared libraries
    distribution: str  # its id and the name of its release, like "debian bookworm"

    @property
    def licence(self) -> str:
        if self.source not in LICENCES:
            raise Unknown(
                f"sbom: the licence of {self.package} {self.version} is not known; read "
                f"/usr/share/doc/{self.package}/copyright and add '{self.source}' to LICENCES in scripts/dist/sbom.py"
            )
        return LICENCES[self.source]

    @property
    def purl(self) -> str:
        version = quote(self.version, safe=".-~")
        vendor, _, release = self.distribution.partition(" ")
        return f"pkg:deb/{vendor}/{quote(self.package, safe='.-')}@{version}?arch={self.architecture}&distro={release}"


def output(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def headers_of(build: Path) -> set[str]:
    """The files of other projects that the daemon's sources include."""
    if not (build / ".ninja_deps").is_file():
        raise Unknown(f"sbom: {build} is not the folder in which Ninja built the daemon; nothing says what is in it")
    objects = [name for name in output("ninja", "-C", build, "-t", "inputs", "gradsyncd").split() if name[-2:] == ".o"]
    listed = output("ninja", "-C", build, "-t", "deps", *objects)
    names = {line.strip() for line in listed.splitlines() if line.startswith("    ")}
    return {name for name in names if name.startswith("/") and not Path(name).is_relative_to(ROOT)}


def shared_libraries_of(daemon: Path) -> dict[str, str]:
    """Path by soname, of those that come with the wheel."""
    found = re.findall(r"^\s*(\S+) => (\S+)", output("ldd", daemon), re.MULTILINE)
    return {name: os.path.realpath(path) for name, path in found if not OF_THE_SYSTEM.fullmatch(name)}


def owners_of(files: Iterable[str]) -> dict[str, str]:
    """Debian package by file."""
    files = sorted(files)
    asked = [*files, *(file.removeprefix("/usr") for file in files if file.startswith("/usr/lib/"))]
    done = subprocess.run(["dpkg", "-S", *asked], capture_output=True, text=True)
    lines = [line.rpartition(": ") for line in done.stdout.splitlines() if not line.startswith("diversion by ")]
    said = {file: owner.partition(", ")[0] for owner, _, file in lines}  # a header may be of one package twice, by CPU
    owners = {file: said.get(file) or said.get(file.removeprefix("/usr")) for file in files}
    if orphans := [file for file, owner in owners.items() if owner is None]:
        raise Unknown(f"sbom: in the daemon, but of no Debian package: {', '.join(orphans[:5])}; install it as one")
    return {file: str(owner) for file, owner in owners.items()}


def parts_of(build: Path) -> list[Part]:
    libraries = shared_libraries_of(build / "bin" / "gradsyncd")
    linked = dict.fromkeys(owners_of(headers_of(build)).values(), "headers")
    of_library = owners_of(libraries.values())
    for owner in set(of_library.values()):
        linked[owner] = " ".join(sorted(name for name, path in libraries.items() if of_library[path] == owner))
    pattern = "${Package}\t${Version}\t${source:Package}\t${Architecture}"
    system = platform.freedesktop_os_release()
    distribution = f"{system['ID']} {system['VERSION_CODENAME']}"
    parts = []
    for owner, how in linked.items():
        package, version, source, architecture = output("dpkg-query", "-W", "-f", pattern, owner).split("\t")
        parts.append(Part(package, version, source, architecture, how, distribution))
    return sorted(parts, key=lambda part: part.package)


def cuda_runtime() -> Document:
    """The part of CUDA that is inside the kernels: the runtime, of the toolkit that nvcc belongs to."""
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    found = re.search(r"release (\d+\.\d+)", output(nvcc, "--version"))
    version = found[1] if found else "unknown"
    return {
        "type": "library",
        "bom-ref": f"cuda-runtime@{version}",
        "name": "CUDA runtime",
        "version": version,
        "licenses": [{"license": {"name": "NVIDIA CUDA Toolkit EULA", "url": "https://docs.nvidia.com/cuda/eula/"}}],
        "purl": f"pkg:generic/nvidia-cuda-runtime@{version}",
        "properties": [{"name": "gradsync:linked", "value": "static"}],
    }


def bill(
    subject: Document,
    contained: list[Document],
    parts: list[Part],
    when: datetime,
    beside: Sequence[Document] = (),
) -> Document:
    """The bill of `subject`; it holds `contained`, if that is anything, which holds the parts; and what is `beside`."""
    libraries = [
        {
            "type": "library",
            "bom-ref": part.purl,
            "name": part.package,
            "version": part.version,
            "licenses": [{"expression": part.licence}],
            "purl": part.purl,
            "properties": [{"name": "gradsync:linked", "value": part.linked}],
        }
        for part in parts
    ]
    chain = [subject, *contained]
    document: Document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"timestamp": when.strftime("%Y-%m-%dT%H:%M:%SZ"), "component": subject},
        "components": [*contained, *libraries, *beside],
        "dependencies": [
            *(
                {"ref": one["bom-ref"], "dependsOn": [other["bom-ref"], *(each["bom-ref"] for each in beside)]}
                for one, other in pairwise(chain)
            ),
            *({"ref": each["bom-ref"]} for each in beside),
            {"ref": chain[-1]["bom-ref"], "dependsOn": [library["bom-ref"] for library in libraries]},
            *({"ref": library["bom-ref"]} for library in libraries),
        ],
    }
    digest = hashlib.sha256(json.dumps(document).encode()).digest()
    return {**document, "serialNumber": f"urn:uuid:{uuid.UUID(bytes=digest[:16], version=4)}"}


def checked_text(document: Document) -> str:
    """As JSON; raises where it is not as the specification's schema wants it."""
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    text = json.dumps(document, indent=2) + "\n"
    if error := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        raise Unknown(f"sbom: not a CycloneDX document: {error}")
    return text


def main(build: Path, wheel: Path | None = None) -> None:
    when = datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), tz=timezone.utc)
    said = json.loads(output(build / "bin" / "gradsyncd", "version", "--json"))
    daemon = {
        "type": "application",
        "bom-ref": f"gradsyncd@{said['version']}",
        "name": said["name"],
        "version": said["version"],
        "properties": [{"name": "gradsync:commit", "value": said["commit"]}],
    }
    parts = parts_of(build)
    daemon_text = checked_text(bill(daemon, [], parts, when))
    if wheel is None:
        print(daemon_text, end="")
        return
    from auditwheel.wheeltools import InWheelCtx

    wheel.with_name("gradsyncd.cdx.json").write_text(daemon_text)
    name, version = wheel.name.split("-")[:2]
    purl = f"pkg:pypi/{name}@{version}"
    package = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
    with zipfile.ZipFile(wheel) as archive:
        has_kernels = any(name.endswith("/libgradsync_kernels.so") for name in archive.namelist())
    text = checked_text(bill(package, [daemon], parts, when, [cuda_runtime()] if has_kernels else []))
    wheel.with_name("gradsync.cdx.json").write_text(text)
    with InWheelCtx(wheel, wheel) as unpacked:
        (folder,) = unpacked.path.glob("*.dist-info")
        (folder / "sboms").mkdir(exist_ok=True)
        (folder / "sboms" / "gradsync.cdx.json").write_text(text)


if __name__ == "__main__":
    try:
        main(*map(Path, sys.argv[1:3]))
    except Unknown as reason:
        sys.exit(str(reason))
