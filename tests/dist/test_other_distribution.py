"""The wheel in another distribution than the one it was built on: Debian 13, with its glibc, GCC runtime and Python.

The root is what debootstrap unpacks, without the scripts of packages, and is kept in build/other-distribution. It gets
the mirror from apt. Where there is no debootstrap, no root or no mirror, these tests are skipped.

RHEL 9 and Ubuntu 22.04 are older than the build machine. No root of them can be had with Debian's tools and keys, so
test_wheel.py holds every symbol of every file in the wheel against what both have.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from zipfile import ZipFile

import pytest
from test_wheel import ROOT, TRAIN

CODENAME = "trixie"
KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
KEPT = ROOT / "build" / "other-distribution" / CODENAME
# What scripts of packages would have made: torch looks its own machine up, and pip does not start without certificates.
FROM_HERE = ("etc/hosts", "etc/ssl/certs/ca-certificates.crt")
# Each run has mounts of its own, which end with it.
ENTER = """
for folder in proc sys dev; do mount --rbind "/$folder" "$0/$folder"; done
for path in $BIND; do
  if [ -d "$path" ]; then mkdir -p "$0$path"; else mkdir -p "$0${path%/*}"; [ -e "$0$path" ] || : >"$0$path"; fi
  mount --bind -o ro "$path" "$0$path"
done
exec chroot "$0" /usr/bin/env -i PATH="$WITH_PATH" HOME=/root OMP_NUM_THREADS=1 "$@"
"""
RANK = """
import os, sys
import numpy
import gradsync
from gradsync import Partial, Replicate

rank = int(sys.argv[1])
with gradsync.connect() as client:
    job = client.attach(job="two", rank=rank, world_size=2)
    grads = job.declare([gradsync.Tensor("w", shape=(4,), placements={"dp": Partial("mean") >> Replicate()})])
    grads.input("w").numpy()[:] = (3.0, 5.0)[rank]
    report = grads.finish(ready="all")
    numpy.testing.assert_array_equal(grads.output("w").numpy(), 4.0)
    print(f"rank {rank} norm {report.norm}", flush=True)
"""
MIRROR_S = 300  # a mirror that is slower is taken for none
pytestmark = pytest.mark.timeout(1200)


def mirror() -> str:
    listed = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(ORIGIN)|$(LABEL)|$(REPO_URI)", "Created-By: Packages"],
        capture_output=True,
        text=True,
    ).stdout
    found = [line.split("|")[2] for line in listed.splitlines() if line.startswith("Debian|Debian|")]
    return found[0] if found else pytest.skip("apt knows no mirror of Debian")


def unpack(root: Path) -> None:
    """Makes the root: what debootstrap unpacks itself, and then every package that it got."""
    partial = root.with_name(root.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.parent.mkdir(parents=True, exist_ok=True)
    wanted = "--include=python3,python3-venv"
    command = [
        "debootstrap",
        "--foreign",
        "--variant=minbase",
        wanted,
        f"--keyring={KEYS}",
        CODENAME,
        partial,
        mirror(),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=MIRROR_S)
    except subprocess.TimeoutExpired:
        pytest.skip(f"no root of {CODENAME} can be had within {MIRROR_S} s")
    if done.returncode != 0:
        pytest.skip(f"no root of {CODENAME} can be had: {(done.stdout + done.stderr).strip().splitlines()[-1]}")
    for package in sorted(partial.glob("var/cache/apt/archives/*.deb")):
        content = subprocess.run(["dpkg-deb", "--fsys-tarfile", package], capture_output=True, check=True).stdout
        subprocess.run(["tar", "-x", "--keep-directory-symlink", "-C", partial], input=content, check=True)
        package.unlink()
    for folder in (partial / "proc", partial / "sys"):
        if folder.is_symlink():  # in a container debootstrap makes a link to the outer one, which in there is a circle
            folder.unlink()
            folder.mkdir()
    partial.rename(root)


@pytest.fixture(scope="module")
def root() -> Path:
    if os.geteuid() != 0:
        pytest.skip("chroot needs root")
    if shutil.which("debootstrap") is None or not KEYS.is_file():
        pytest.skip("debootstrap or Debian's keys are not installed")
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0:
        pytest.skip("this machine gives nobody mounts of their own")
    if not KEPT.is_dir():
        unpack(KEPT)
    for name in FROM_HERE:
        (KEPT / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(f"/{name}", KEPT / name)
    entered = entering(KEPT, "true", bin_folder="/none")
    if entered.returncode != 0:
        pytest.skip(f"this machine lets nobody into the root: {entered.stderr.strip()}")
    return KEPT


def entering(root: Path, *command: str, bin_folder: str, bind: str = "") -> subprocess.CompletedProcess[str]:
    """Runs a command in there, with a PATH of its own and nothing else of this machine's environment."""
    environment = {"PATH": os.environ["PATH"], "BIND": bind, "WITH_PATH": f"{bin_folder}:/usr/bin:/bin"}
    return subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-ec", ENTER, root, *command],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


def ran(root: Path, *command: str, bin_folder: str, bind: str = "") -> str:
    """What a command prints in there."""
    done = entering(root, *command, bin_folder=bin_folder, bind=bind)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def packages(root: Path) -> Path:
    """A folder with the wheel, and with what it and the test need, for the Python in there."""
    (wheel,) = (ROOT / "build" / "dist").glob("*.whl")
    folder = root / "packages"
    for old in folder.glob("gradsync*.whl"):
        old.unlink()
    version = ran(
        root, "python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])", bin_folder="/none"
    ).strip()
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--dest", folder]
    for_version = ["--python-version", version, "--only-binary=:all:"]
    if subprocess.run([*download, *for_version, "websockets", "numpy"], timeout=300).returncode != 0:
        pytest.skip(f"no websockets and numpy for Python {version} can be had")
    shutil.copy(wheel, folder)
    return Path("/packages") / wheel.name


def test_pip_installs_it_and_two_processes_get_one_norm(root: Path, packages: Path) -> None:
    ran(root, "python3", "-m", "venv", "--clear", "/env", bin_folder="/none")
    install = ["python", "-m", "pip", "install", "--quiet", "--no-index", "--find-links", "/packages"]
    ran(root, *install, str(packages), "numpy", bin_folder="/env/bin")

    distribution = ran(root, "cat", "/etc/os-release", bin_folder="/env/bin")
    assert f"VERSION_CODENAME={CODENAME}" in distribution
    here = subprocess.run(
        [ROOT / "build" / "cpu-release" / "bin" / "gradsyncd", "--version"], capture_output=True, text=True, check=True
    ).stdout
    (wheel,) = (ROOT / "build" / "dist").glob("*.whl")
    brings_kernels = any(name.endswith("/libgradsync_kernels.so") for name in ZipFile(wheel).namelist())
    expected = here.replace("CUDA no", f"CUDA {'yes' if brings_kernels else 'no'}")
    assert ran(root, "gradsyncd", "--version", bin_folder="/env/bin") == expected
    both = ran(root, "gradsync", "--version", bin_folder="/env/bin")
    assert re.search(
        r"^daemon /env/lib/python3\.\d+/site-packages/gradsync/bin/gradsyncd: gradsyncd ", both, re.MULTILINE
    )

    (root / "rank.py").write_text(RANK)
    two = "python /rank.py 0 & python /rank.py 1; last=$?; wait $! && exit $last"
    said = ran(root, "gradsyncd", "run", "--", "sh", "-c", two, bin_folder="/env/bin")
    assert sorted(said.split("\n")) == ["", "rank 0 norm 8.0", "rank 1 norm 8.0"]


def test_an_audit_gives_a_verdict_there(root: Path, packages: Path) -> None:
    """Torch is the one of the development environment, and so is the Python that it was made for, but not its libc."""
    prefix = Path(sys.base_prefix)
    python = Path(sys.executable).resolve()
    ours = sysconfig.get_path("purelib")
    of_python = [prefix] if prefix != Path("/usr") else [python, Path(sysconfig.get_path("stdlib"))]
    bind = " ".join(map(str, [*of_python, ours]))
    where = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"

    ran(root, str(python), "-m", "venv", "--clear", "--without-pip", "/env-torch", bin_folder="/none", bind=bind)
    (root / "env-torch" / where / "torch-of-development.pth").write_text(ours + "\n")
    install = ["python", "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--ignore-installed"]
    ran(root, *install, str(packages), bin_folder="/env-torch/bin", bind=bind)
    (root / "train.py").write_text(TRAIN)
    command = ["/env-torch/bin/python", "-m", "torch.distributed.run", "--nproc-per-node", "2", "/train.py"]
    said = ran(root, "gradsync", "audit", "--steps", "2", "--", *command, bin_folder="/env-torch/bin", bind=bind)
    assert "agrees" in said
