"""Comments and docstrings are sentences: none is a fragment that begins with "Of"."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("arithmetic", "clients", "deploy", "kernels", "scripts", "service", "tests")
SUFFIXES = {".cpp", ".hpp", ".cu", ".cuh", ".py", ".sh", ".cmake"}
# A comment that fills its line or ends it, or the first line of a docstring.
FRAGMENT = re.compile(r"""(?:^|\s)(?:///?<?|#|\*|"{3})\s*Of\s""")


def fragments(text: str) -> list[int]:
    """The numbers of the lines with a comment or docstring that begins with "Of"."""
    return [number for number, line in enumerate(text.splitlines(), 1) if FRAGMENT.search(line)]


def test_no_comment_or_docstring_begins_with_of() -> None:
    sources = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES]
    assert len(sources) > 500
    found = [f"{path.relative_to(ROOT)}:{number}" for path in sources for number in fragments(path.read_text())]
    assert not found, f"say what the thing is, in a sentence with a verb: {found}"


@pytest.mark.parametrize("mark", ["//", "///", "///<", "#", "*", "int a = 0;  ///<", "a = 0  #", '"' * 3, "    //"])
def test_a_fragment_is_found_behind_every_mark(mark: str) -> None:
    assert fragments(f"first\n{mark} Of the only file.") == [2]
    assert not fragments(f"first\n{mark} The path of the only file. Office.")
