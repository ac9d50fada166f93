"""The commit that this client was built from."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

__all__ = ["commit", "commit_of_checkout"]

UNKNOWN = "unknown"
_DEADLINE_S = 10.0
_PACKAGE = Path(__file__).parent
_DIGITS = 12  #: as `gradsyncd --version` has


def commit(package: Path = _PACKAGE) -> str:
    """What the build wrote beside this file; in a checkout what git says of it; else "unknown"."""
    try:
        return (package / "COMMIT").read_text().strip()
    except OSError:
        return commit_of_checkout(package.parents[3]) if len(package.parents) > 3 else UNKNOWN


def commit_of_checkout(folder: Path) -> str:
    """The commit that is checked out in a folder; "unknown" where it is no checkout, or there is no git."""
    if not (folder / ".git").exists():  # not the repository of someone who unpacked the sources inside of it
        return UNKNOWN
    command = ["git", "-c", f"safe.directory={folder}", "-C", str(folder), "rev-parse", "--verify", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DEADLINE_S)
    except (OSError, subprocess.TimeoutExpired):
        return UNKNOWN
    found = done.stdout.strip()
    return found[:_DIGITS] if done.returncode == 0 and re.fullmatch("[0-9a-f]+", found) else UNKNOWN
