"""The images of deploy/docker: their steps are executed in roots of Debian 12, and the daemon runs in the result.

The root is what debootstrap makes, kept in build/debian-bookworm. The stages that compile have ccache besides, with the
cache of this machine: what its own build compiled from the same sources with the same packages is not compiled again.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from dockerfile import PATH, Builder, Image, read_stages
from test_other_distribution import FROM_HERE, KEYS, MIRROR_S, mirror

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "build" / "debian-bookworm"
BASE = "debian:bookworm-slim"
# Settings of the image of that name: what is unpacked is not synced file by file, and documents and packages not kept.
SETTINGS = {
    "etc/apt/apt.conf.d/docker-clean": """DPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb"; };\n""",
    "etc/apt/apt.conf.d/docker-no-languages": """Acquire::Languages "none";\n""",
    "etc/dpkg/dpkg.cfg.d/docker-apt-speedup": "force-unsafe-io\n",
    "etc/dpkg/dpkg.cfg.d/docker": "".join(
        f"path-exclude /usr/share/{name}/*\n" for name in ("doc", "info", "lintian/overrides", "locale", "man")
    ),
}
WITH_CACHE = f"{BASE} with ccache"
USER = 65532
DEADLINE_S = 120
STAGES = {stage.name: stage for stage in read_stages((ROOT / "deploy/docker/Dockerfile").read_text())}
# As a container with --read-only, --cap-drop ALL, --security-opt no-new-privileges and a tmpfs for the socket, with
# processes and a network of its own.
CONTAINER = """
root=$1; shift
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o uid=65532,gid=65532,mode=0755 none "$root/run/gradsync"
mount -o remount,bind,ro "$root"
exec chroot "$root" "$@"
"""
AS_USER = [
    "setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--no-new-privs", "--bounding-set=-all", "--",
]  # fmt: skip
pytestmark = pytest.mark.timeout(2400)


def make_root(root: Path) -> None:
    partial = root.with_name(root.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.parent.mkdir(parents=True, exist_ok=True)
    command = ["debootstrap", "--variant=minbase", f"--keyring={KEYS}", "bookworm", partial, mirror()]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=2 * MIRROR_S, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"no root of bookworm can be had within {2 * MIRROR_S} s")
    if done.returncode != 0:
        pytest.skip(f"no root of bookworm can be had: {(done.stdout + done.stderr).strip().splitlines()[-1]}")
    partial.rename(root)


@pytest.fixture(scope="module")
def base() -> Image:
    if os.geteuid() != 0:
        pytest.skip("chroot needs root")
    if shutil.which("debootstrap") is None or not KEYS.is_file():
        pytest.skip("debootstrap or Debian's keys are not installed")
    if subprocess.run(["unshare", "--mount", "--pid", "--net", "--fork", "true"], capture_output=True).returncode != 0:
        pytest.skip("this machine gives nobody mounts and processes of their own")
    if not KEPT.is_dir():
        make_root(KEPT)
    for name in FROM_HERE:
        (KEPT / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(f"/{name}", KEPT / name)
    for name, text in SETTINGS.items():
        (KEPT / name).write_text(text)
    return Image(KEPT)


def cache_folder() -> Path:
    asked = subprocess.run(["ccache", "--get-config", "cache_dir"], capture_output=True, text=True, check=True)
    folder = Path(asked.stdout.strip())
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def builder(base: Image, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    folder = tmp_path_factory.mktemp("images")
    cache = cache_folder()
    builder = Builder(folder, {BASE: base}, ROOT, [cache])
    caching = base.copied_to(folder / "with-ccache")
    builder.run(caching, "apt-get update && apt-get install -y --no-install-recommends ccache")
    # What scripts/build.sh sets, and the language, which is part of what a compilation is found by.
    language = {key: value for key, value in os.environ.items() if key == "LANG" or key.startswith("LC_")}
    caching.environment = {
        **language,
        "PATH": f"/usr/lib/ccache:{PATH}",
        "CCACHE_DIR": str(cache),
        "CCACHE_BASEDIR": "/src",
        "CCACHE_NOHASHDIR": "1",
    }
    builder.images[WITH_CACHE] = caching
    yield builder
    shutil.rmtree(folder)  # roots are large


@pytest.fixture(scope="module")
def image(builder: Builder) -> Image:
    builder.build(replace(STAGES["build"], base=WITH_CACHE))
    return builder.build(STAGES["cpu"])


class Container:
    """The image's own command, until it is stopped."""

    def __init__(self, image: Image) -> None:
        self._image = image
        isolated = ["unshare", "--mount", "--propagation", "private", "--pid", "--net", "--fork"]
        variables = [f"{key}={value}" for key, value in image.environment.items()]
        command = ["env", "-i", *variables, *AS_USER, *image.entrypoint, *image.command]
        self.process = subprocess.Popen(
            [*isolated, "sh", "-ec", CONTAINER, "sh", image.root, *command], stderr=subprocess.PIPE, text=True
        )
        assert self.process.stderr is not None
        self.first_line = self.process.stderr.readline()
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        assert children, self.first_line + self.process.stderr.read()
        (self.pid,) = map(int, children)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        entered = ["nsenter", f"--target={self.pid}", "--mount", "--pid", "--net", "--root", "--wd"]
        return subprocess.run(
            [*entered, "env", "-i", f"PATH={PATH}", *AS_USER, *command],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )

    def stop(self) -> int:
        os.kill(self.pid, signal.Signals[self._image.signal])
        return self.process.wait(DEADLINE_S)


@pytest.fixture
def container(image: Image) -> Iterator[Container]:
    running = Container(image)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            os.kill(running.pid, signal.SIGKILL)  # its process 1, with which all others in there end
            running.process.wait(DEADLINE_S)
        assert running.process.stderr is not None
        running.process.stderr.close()


def test_the_image_serves_as_its_user_with_nothing_to_write_to_but_the_folder_of_the_socket(
    image: Image, container: Container
) -> None:
    assert image.user == f"{USER}:{USER}"
    assert image.ports == ["9477", "9478"]
    assert "serving version=" in container.first_line
    assert "socket=/run/gradsync/gradsync.sock health=0.0.0.0:9477" in container.first_line
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{container.pid}/status").read_text().splitlines())
    assert status["Uid"].split() == [str(USER)] * 4
    assert status["NSpid"].split()[-1] == "1"
    assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0
    for folder in ("/", "/tmp", "/usr/local/bin", "/etc", "/var/tmp"):
        assert container.run("touch", f"{folder}/written").returncode != 0
    assert container.run("touch", "/run/gradsync/written").returncode == 0


def test_the_healthcheck_tells_a_daemon_that_serves_from_none(image: Image, container: Container) -> None:
    end = time.monotonic() + DEADLINE_S
    while (asked := container.run(*image.healthcheck)).returncode != 0:
        assert time.monotonic() < end, asked.stderr
    assert '"state":"serving"' in asked.stdout
    socket = image.healthcheck[-1]
    assert container.run("rm", socket.removeprefix("unix:")).returncode == 0
    assert container.run(*image.healthcheck).returncode == 69


def test_the_stop_signal_drains_it(container: Container) -> None:
    """Process 1 has no signal's default: what it does not handle it does not get."""
    assert container.stop() == 0
    assert container.process.stderr is not None
    assert "stopped" in container.process.stderr.read()


def test_a_read_only_mount_of_the_folder_is_enough_for_clients(container: Container) -> None:
    """So trainers in Kubernetes have it: they connect, and cannot put another socket there."""
    script = 'mount -o remount,bind,ro /run/gradsync && exec "$@"'
    entered = ["nsenter", f"--target={container.pid}", "--mount", "--net", "--root", "unshare", "--mount"]
    private = [*entered, "sh", "-ec", script, "sh", *AS_USER]
    asked = subprocess.run([*private, "gradsyncd", "status"], capture_output=True, text=True, timeout=DEADLINE_S)
    assert asked.returncode == 0, asked.stderr
    assert subprocess.run([*private, "touch", "/run/gradsync/x"], capture_output=True).returncode != 0


@pytest.mark.skipif(platform.machine() != "x86_64", reason="NVIDIA's wheels in the Dockerfile are those for x86-64")
def test_the_image_for_gpus_has_the_kernels(image: Image, builder: Builder) -> None:
    # The wheels hold several programs that compile; which ones they are is fixed by the steps alone.
    builder.images["build"].environment |= {
        "CMAKE_CUDA_COMPILER_LAUNCHER": "ccache",
        "CCACHE_COMPILERCHECK": "content",
        "CCACHE_NAMESPACE": hashlib.sha256(repr(STAGES["kernels"].steps).encode()).hexdigest(),
    }
    builder.build(STAGES["kernels"])
    cuda = builder.build(STAGES["cuda"])
    assert cuda.entrypoint + cuda.command == image.entrypoint + image.command
    assert (cuda.root / cuda.environment["GRADSYNC_GPU_KERNELS"].lstrip("/")).stat().st_size > 100_000
