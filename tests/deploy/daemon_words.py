"""What the binary at hand and the client know: settings, variables, commands and pages."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import tomllib
from manifests import ROOT

BINARY = os.environ.get("GRADSYNCD", str(ROOT / "build/cpu-release/bin/gradsyncd"))
DEADLINE_S = 60.0


def clean_environment(**extra: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GRADSYNC_")}
    kept.pop("XDG_RUNTIME_DIR", None)
    return {**kept, **extra}


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command of the daemon or of the client, named as in a manifest."""
    program = {"gradsyncd": [BINARY], "gradsync": [sys.executable, "-m", "gradsync"]}[words[0]]
    return subprocess.run(
        [*program, *words[1:]],
        env=clean_environment(GRADSYNCD=BINARY, **environment),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


@functools.cache
def settings() -> dict[str, object]:
    """Every setting with its default, as `GRADSYNC_SECTION_KEY`."""
    shown = run("gradsyncd", "config", "show", GRADSYNC_CONFIG=os.devnull)
    assert shown.returncode == 0, shown.stderr
    sections = tomllib.loads(shown.stdout)
    return {
        f"GRADSYNC_{section}_{key}".upper(): value for section, keys in sections.items() for key, value in keys.items()
    }


@functools.cache
def variables_of_the_client() -> frozenset[str]:
    """Those that the client's sources name, but for the settings of the daemon."""
    sources = (ROOT / "clients/python/src").rglob("*.py")
    named = {name for path in sources for name in re.findall(r'"(GRADSYNC_[A-Z_]*[A-Z])"', path.read_text())}
    return frozenset(named - set(settings()))


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def peers_port() -> int:
    """The port of [peer] listen where it names none, as the help says it."""
    said = re.search(r"without a port (\d+)", run("gradsyncd", "serve", "--help").stdout)
    assert said is not None
    return int(said[1])


def file_with_token(folder: Path) -> Path:
    token = folder / "token"
    token.write_text("0123456789abcdef\n")
    token.chmod(0o600)
    return token
