"""The package of `make deb`: what is in it, and that dpkg installs, upgrades, removes and purges it.

dpkg does that in a folder of its own, as root and without a chroot: DPKG_ROOT tells the maintainer scripts where they
are, and the daemon starts from there.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "deb"
DEADLINE_S = 300
SETTINGS = "etc/gradsync/gradsyncd.toml"
UNIT = "usr/lib/systemd/system/gradsyncd.service"
ENABLED = f"etc/systemd/system/multi-user.target.wants/{Path(UNIT).name}"
FILES = {
    SETTINGS: 0o644,
    UNIT: 0o644,
    "usr/bin/gradsyncd": 0o755,
    "usr/lib/sysusers.d/gradsync.conf": 0o644,
    "usr/share/bash-completion/completions/gradsyncd": 0o644,
    "usr/share/doc/gradsync/CHANGELOG.md.gz": 0o644,
    "usr/share/doc/gradsync/README.md": 0o644,
    "usr/share/doc/gradsync/changelog.gz": 0o644,
    "usr/share/doc/gradsync/copyright": 0o644,
    "usr/share/doc/gradsync/gradsyncd.cdx.json": 0o644,
    "usr/share/man/man1/gradsyncd.1.gz": 0o644,
    "usr/share/man/man5/gradsyncd.toml.5.gz": 0o644,
    "usr/share/zsh/vendor-completions/_gradsyncd": 0o644,
}
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="dpkg sets owners, for which it must be root")


def needs(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"{program} is not installed")


def environment(**extra: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("GRADSYNC_", "DPKG_"))}
    kept.pop("XDG_RUNTIME_DIR", None)
    return {**kept, **extra}


def ran(*command: str | Path, **extra: str) -> str:
    done = subprocess.run(
        command, env=environment(**extra), capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def package() -> Path:
    (found,) = FOLDER.glob("*.deb")
    return found


@pytest.fixture(scope="module")
def unpacked(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    ran("dpkg-deb", "--raw-extract", package, folder)
    return folder


def field(package: Path, name: str) -> str:
    return ran("dpkg-deb", "--field", package, name).strip()


def test_its_head_names_version_architecture_and_what_it_needs(package: Path, unpacked: Path) -> None:
    version = json.loads(ran(unpacked / "usr/bin/gradsyncd", "version", "--json"))["version"]
    architecture = ran("dpkg", "--print-architecture").strip()
    assert package.name == f"gradsync_{version}_{architecture}.deb"
    assert (field(package, "Package"), field(package, "Version")) == ("gradsync", version)
    assert field(package, "Architecture") == architecture
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", ran("readelf", "--dynamic", unpacked / "usr/bin/gradsyncd"))
    depends = field(package, "Depends")
    assert "libc6 (>= " in depends
    assert "systemd | systemd-standalone-sysusers" in depends
    for soname in needed:
        lines = ran("dpkg-query", "--search", f"*/{soname}").splitlines()
        owners = {line.split(":", 1)[0] for line in lines}  # libm also of packages for other processors
        assert owners & set(re.findall(r"[a-z0-9.+-]+", depends)), (soname, owners, depends)


def test_it_has_these_files_and_no_others(unpacked: Path) -> None:
    there = {
        path.relative_to(unpacked).as_posix(): path.stat().st_mode & 0o7777
        for path in unpacked.rglob("*")
        if path.is_file() and "DEBIAN" not in path.parts
    }
    licences = {name for name in there if name.startswith("usr/share/doc/gradsync/licences/")}
    assert {name: mode for name, mode in there.items() if name not in licences} == FILES
    header_only = ("libboost1.81-dev", "libcli11-dev", "libspdlog-dev", "nlohmann-json3-dev")
    assert {Path(name).name for name in licences} == {f"{name}.gz" for name in header_only}
    folders = [path for path in unpacked.rglob("*") if path.is_dir() and "DEBIAN" not in path.parts]
    assert {path.stat().st_mode & 0o7777 for path in folders} == {0o755}


def test_its_bill_of_materials_has_what_it_depends_on_and_what_it_brings_licences_of(
    package: Path, unpacked: Path
) -> None:
    doc = unpacked / "usr/share/doc/gradsync"
    bill = json.loads((doc / "gradsyncd.cdx.json").read_text())
    said = json.loads(ran(unpacked / "usr/bin/gradsyncd", "version", "--json"))
    daemon = bill["metadata"]["component"]
    assert (daemon["name"], daemon["version"]) == ("gradsyncd", said["version"])
    assert daemon["properties"] == [{"name": "gradsync:commit", "value": said["commit"]}]
    named = {component["name"] for component in bill["components"]}
    assert {path.stem for path in (doc / "licences").iterdir()} - named == set()
    shared = set(re.findall(r"\blib[a-z0-9.+-]+", field(package, "Depends")))
    assert shared - {"libc6", "libgcc-s1", "libstdc++6"} - named == set()


def test_its_control_files_are_complete(unpacked: Path) -> None:
    control = unpacked / "DEBIAN"
    assert (control / "conffiles").read_text() == f"/{SETTINGS}\n"
    sums = dict(reversed(line.split(maxsplit=1)) for line in (control / "md5sums").read_text().splitlines())
    assert set(FILES) <= set(sums)
    for name, md5 in sums.items():
        assert hashlib.md5((unpacked / name).read_bytes()).hexdigest() == md5, name
    for script in ("postinst", "prerm", "postrm"):
        assert (control / script).stat().st_mode & 0o777 == 0o755
        ran("sh", "-n", control / script)


def test_the_daemon_is_stripped_and_knows_nothing_of_the_folder_it_was_built_in(unpacked: Path) -> None:
    daemon = unpacked / "usr/bin/gradsyncd"
    assert ".debug_info" not in ran("readelf", "--sections", daemon)
    assert ".symtab" not in ran("readelf", "--sections", daemon)
    assert not re.search(r"R(UN)?PATH", ran("readelf", "--dynamic", daemon))
    assert str(ROOT).encode() not in daemon.read_bytes()


def test_every_setting_is_a_comment_with_its_default(unpacked: Path, tmp_path: Path) -> None:
    text = (unpacked / SETTINGS).read_text()
    assert not re.search(r"^[a-z_]+ =", text, re.MULTILINE)
    daemon = unpacked / "usr/bin/gradsyncd"
    assert ran(daemon, "check-config", unpacked / SETTINGS) == "ok\n"
    shown = ran(daemon, "config", "show", "--config", unpacked / SETTINGS)
    every = tmp_path / "every.toml"
    every.write_text(re.sub(r"^#([a-z_]+ =)", r"\1", text, flags=re.MULTILINE))
    origins = ran(daemon, "config", "show", "--origin", "--config", every)
    values = [line for line in origins.splitlines() if " = " in line]
    assert len(values) >= 27
    assert all(f"# file {every}:" in line for line in values)
    assert ran(daemon, "config", "show", "--config", every) == shown


def test_manual_and_completion_are_those_of_the_daemon(unpacked: Path) -> None:
    daemon = unpacked / "usr/bin/gradsyncd"
    for name, page in (("man1/gradsyncd.1.gz", "gradsyncd"), ("man5/gradsyncd.toml.5.gz", "gradsyncd.toml")):
        packed = gzip.decompress((unpacked / "usr/share/man" / name).read_bytes()).decode()
        date = re.match(r'\.TH \S+ \d "(\d{4}-\d\d-\d\d)"', packed)
        assert date, packed[:80]
        assert packed == ran(daemon, "man", page).replace('""', f'"{date[1]}"', 1)
    for name, shell in (
        ("bash-completion/completions/gradsyncd", "bash"),
        ("zsh/vendor-completions/_gradsyncd", "zsh"),
    ):
        assert (unpacked / "usr/share" / name).read_text() == ran(daemon, "completion", shell)


@needs("systemd-analyze")
def test_systemd_takes_the_unit_and_finds_it_confined(unpacked: Path) -> None:
    for target in ("multi-user.target", "sysinit.target", "basic.target", "shutdown.target", "system.slice"):
        (unpacked / UNIT).with_name(target).write_text("[Unit]\nDescription=here\n")
    done = subprocess.run(
        ["systemd-analyze", "verify", f"--root={unpacked}", "--man=no", f"/{UNIT}"],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    security = ["systemd-analyze", "security", "--offline=true", "--no-pager", f"--root={unpacked}"]
    ran(*security, "--threshold=20", Path(UNIT).name)  # tenths; 100 is a service that may do everything
    for target in (unpacked / UNIT).parent.glob("*.*"):
        if target.name != Path(UNIT).name:
            target.unlink()


class Machine:
    """A folder that dpkg takes for the root of a machine."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in ("var/lib/dpkg/info", "var/lib/dpkg/updates", "run/gradsync", "etc", "tmp"):
            (root / folder).mkdir(parents=True)
        (root / "var/lib/dpkg/status").touch()

    def dpkg(self, *arguments: str | Path) -> str:
        forced = "--force-script-chrootless,depends,confdef,confold,bad-path"
        return ran("dpkg", f"--root={self.root}", "--log=/dev/null", forced, *arguments)

    def state(self) -> str:
        return ran("dpkg-query", f"--admindir={self.root}/var/lib/dpkg", "-W", "-f=${Status}", "gradsync")

    def users(self) -> list[str]:
        return [line for line in (self.root / "etc/passwd").read_text().splitlines() if line.startswith("gradsync:")]

    def is_enabled(self) -> bool:
        return (self.root / ENABLED).is_symlink()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "root")


@as_root
@needs("systemd-sysusers")
def test_an_installation_makes_the_user_and_enables_the_service(machine: Machine, package: Path) -> None:
    machine.dpkg("--install", package)
    assert machine.state() == "install ok installed"
    (user,) = machine.users()
    name, _, uid, gid, _, home, shell = user.split(":")
    assert (name, home) == ("gradsync", "/var/lib/gradsync")
    assert shell.endswith("nologin")
    assert 0 < int(uid) < 1000
    assert f"gradsync:x:{gid}:" in (machine.root / "etc/group").read_text()
    assert machine.is_enabled()
    for path in machine.root.rglob("*"):
        assert path.lstat().st_uid == 0, path
    assert ran("dpkg", f"--root={machine.root}", "--verify", "gradsync") == ""


@as_root
@needs("systemd-sysusers")
def test_an_upgrade_keeps_settings_the_user_and_a_disabled_service(machine: Machine, package: Path) -> None:
    machine.dpkg("--install", package)
    settings = machine.root / SETTINGS
    settings.write_text(settings.read_text().replace('#level = "info"', 'level = "debug"'))
    (machine.root / ENABLED).unlink()
    user = machine.users()
    machine.dpkg("--install", package)
    assert machine.state() == "install ok installed"
    assert 'level = "debug"' in settings.read_text().splitlines()
    assert not machine.is_enabled()
    assert machine.users() == user


@as_root
@needs("systemd-sysusers")
def test_a_removal_keeps_what_a_purge_removes(machine: Machine, package: Path) -> None:
    machine.dpkg("--install", package)
    state = machine.root / "var/lib/gradsync/policies/job.state"
    state.parent.mkdir(parents=True)
    state.touch()
    machine.dpkg("--remove", "gradsync")
    assert machine.state() == "deinstall ok config-files"
    assert not (machine.root / "usr/bin/gradsyncd").exists()
    assert (machine.root / SETTINGS).exists()
    assert state.exists()
    machine.dpkg("--install", package)
    assert machine.is_enabled()
    machine.dpkg("--purge", "gradsync")
    assert not (machine.root / "var/lib/gradsync").exists()
    assert not (machine.root / "etc/gradsync").exists()
    assert not machine.is_enabled()
    left = [path for path in machine.root.rglob("*gradsync*") if path != machine.root / "run/gradsync"]
    assert left == []
    assert machine.users()  # files may still be its own


# What the maintainer scripts would ask systemd for, one line per call.
CALLS = """
mount -t tmpfs none /run && mkdir -p /run/systemd/system
for tool in systemctl systemd-sysusers deb-systemd-helper deb-systemd-invoke; do
  printf '#!/bin/sh\necho %s "$@"\n' $tool >/run/$tool
  chmod +x /run/$tool
done
PATH=/run:$PATH exec "$@"
"""


def calls(script: Path, *arguments: str) -> list[str]:
    """What a script calls on a machine that systemd runs. It has a /run of its own, in which the stubs lie."""
    return ran("unshare", "--mount", "sh", "-e", "-c", CALLS, "sh", script, *arguments).splitlines()


def may_mount() -> bool:
    command = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/run"]
    return shutil.which("unshare") is not None and subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.skipif(not may_mount(), reason="a mount namespace of its own is needed, and not allowed here")
def test_the_service_is_started_restarted_after_an_upgrade_and_stopped_before_a_removal(unpacked: Path) -> None:
    control = unpacked / "DEBIAN"
    unit = Path(UNIT).name
    first = calls(control / "postinst", "configure", "")
    assert first[0] == "systemd-sysusers gradsync.conf"
    assert first[-2:] == ["systemctl --system daemon-reload", f"deb-systemd-invoke start {unit}"]
    assert calls(control / "postinst", "configure", "0.0.9")[-1] == f"deb-systemd-invoke restart {unit}"
    assert calls(control / "postinst", "triggered", "x") == []
    assert calls(control / "prerm", "upgrade", "0.2.0") == []
    assert calls(control / "postrm", "upgrade", "0.2.0") == []
    assert calls(control / "prerm", "remove") == [f"deb-systemd-invoke stop {unit}"]
    assert calls(control / "postrm", "remove") == ["systemctl --system daemon-reload"]


@as_root
@needs("systemd-sysusers")
@needs("setpriv")
def test_the_daemon_serves_members_of_its_group_and_nobody_else(package: Path) -> None:
    """As the unit starts it, but for the folders: others have no way into pytest's, and clients trust none in /tmp."""
    root = Path(ran("mktemp", "--directory", "/var/tmp/gradsync-deb-XXXXXX").strip())
    root.chmod(0o755)
    try:
        machine = Machine(root / "root")
        machine.dpkg("--install", package)
        uid, gid = machine.users()[0].split(":")[2:4]
        runtime = machine.root / "run/gradsync"
        os.chown(runtime, int(uid), int(gid))
        daemon = machine.root / "usr/bin/gradsyncd"
        unit = (machine.root / UNIT).read_text()
        assert "ExecStart=/usr/bin/gradsyncd serve --config /etc/gradsync/gradsyncd.toml\n" in unit
        socket = f"{runtime}/gradsync.sock"
        serve = [str(daemon), "serve", "--config", f"{machine.root}/{SETTINGS}"]
        private = ["--socket", socket, "--health", "127.0.0.1:0"]
        own = ["setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups", "--"]
        process = subprocess.Popen([*own, *serve, *private], env=environment(), cwd="/", stderr=subprocess.PIPE)
        try:
            end = time.monotonic() + DEADLINE_S
            while not Path(socket).exists():
                assert process.poll() is None, process.stderr.read() if process.stderr else ""
                assert time.monotonic() < end
                time.sleep(0.01)
            assert Path(socket).stat().st_mode & 0o777 == 0o660
            ask = [str(daemon), "status", "--json", "--address", socket]
            status = json.loads(ran("setpriv", "--reuid=65534", "--regid=65534", f"--groups={gid}", "--", *ask))
            assert status["pid"] == process.pid
            refused = subprocess.run(
                ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--", *ask],
                env=environment(),
                capture_output=True,
                text=True,
                timeout=DEADLINE_S,
                check=False,
            )
            assert refused.returncode == 69
            assert socket in refused.stderr
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(DEADLINE_S) == 0
    finally:
        shutil.rmtree(root)


def test_the_same_commit_is_packed_into_the_same_bytes() -> None:
    packed = []
    for _ in range(2):  # what lies there may be of an earlier commit
        ran(ROOT / "scripts" / "deb.sh")
        (found,) = FOLDER.glob("*.deb")
        packed.append(found.read_bytes())
    assert packed[0] == packed[1]
