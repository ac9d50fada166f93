"""The commit that a client names: of its build, of its checkout, or none."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from gradsync._commit import commit


def package_in(folder: Path) -> Path:
    package = folder / "clients" / "python" / "src" / "gradsync"
    package.mkdir(parents=True)
    return package


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    done = subprocess.run(["git", *who, *arguments], cwd=folder, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.strip()


def test_a_checkout_names_what_is_checked_out_in_it(tmp_path: Path) -> None:
    package = package_in(tmp_path)
    git(tmp_path, "init", "-q")
    assert commit(package) == "unknown"  # no commit yet
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "first")
    head = git(tmp_path, "rev-parse", "HEAD")
    assert re.fullmatch("[0-9a-f]{12}", commit(package))
    assert head.startswith(commit(package))


def test_what_a_build_wrote_comes_first(tmp_path: Path) -> None:
    package = package_in(tmp_path)
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "first")
    (package / "COMMIT").write_text("0123456789ab\n")
    assert commit(package) == "0123456789ab"


def test_sources_inside_of_another_repository_are_not_of_its_commit(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "of someone else")
    assert commit(package_in(tmp_path / "unpacked")) == "unknown"


def test_without_git_it_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = package_in(tmp_path)
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "first")
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert commit(package) == "unknown"
