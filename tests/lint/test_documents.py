"""Documents that name files must not outlive them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Where a path in a document may start.
BASES = ("", "service", "clients/python/src", "clients/python/src/gradsync", "docs")
NAMED = re.compile(r"`([\w./-]+\.(?:cpp|hpp|py|md|sh|json|jsonl))`|\]\(([\w./-]+\.md)\)")


@pytest.mark.parametrize("document", ["docs/architecture.md", "CONTRIBUTING.md", "tests/bench/README.md"])
def test_every_file_a_document_names_exists(document: str) -> None:
    names = {one or other for one, other in NAMED.findall((ROOT / document).read_text())}
    bases = [*(ROOT / base for base in BASES), (ROOT / document).parent]
    missing = sorted(name for name in names if not any((base / name).is_file() for base in bases))
    assert names
    assert not missing, f"{document} names files that are not there: {missing}"
