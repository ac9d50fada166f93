"""Documents name files that exist, and are set so that people can read them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Where a path in a document may start.
BASES = ("", "service", "clients/python/src", "clients/python/src/gradsync", "docs")
NAMED = re.compile(r"`([\w./-]+\.(?:cpp|hpp|py|md|sh|json|jsonl))`|\]\(([\w./-]+\.md)\)")


NAMING_FILES = ["docs/architecture.md", "CONTRIBUTING.md", "service/README.md", "tests/bench/README.md"]
# Every document that people read. gpu-findings.md and the changelog only grow; the ADRs are records.
DOCUMENTS = sorted(
    {
        path.relative_to(ROOT).as_posix()
        for folder in ("docs", "service", "tests")
        for path in (ROOT / folder).rglob("*.md")
    }
    | {"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "clients/python/README.md"}
)
LONGEST_LINE = 100
LONGEST_CELL = 25  # words


@pytest.mark.parametrize("document", NAMING_FILES)
def test_every_file_a_document_names_exists(document: str) -> None:
    names = {one or other for one, other in NAMED.findall((ROOT / document).read_text())}
    bases = [*(ROOT / base for base in BASES), (ROOT / document).parent]
    missing = sorted(name for name in names if not any((base / name).is_file() for base in bases))
    assert names
    assert not missing, f"{document} names files that are not there: {missing}"


def _prose(document: str) -> list[tuple[int, str]]:
    """The lines outside of code blocks, with their numbers."""
    lines = []
    fenced = False
    for number, line in enumerate((ROOT / document).read_text().splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            lines.append((number, line))
    return lines


@pytest.mark.parametrize("document", DOCUMENTS)
def test_lines_have_at_most_100_columns_and_table_cells_25_words(document: str) -> None:
    findings = []
    for number, line in _prose(document):
        if line.startswith("|"):
            longest = max(len(cell.split()) for cell in re.split(r"(?<!\\)\|", line))
            if longest > LONGEST_CELL:
                findings.append(f"{document}:{number}: a cell of {longest} words (the limit is {LONGEST_CELL})")
        elif len(line) > LONGEST_LINE:
            findings.append(f"{document}:{number}: {len(line)} columns (the limit is {LONGEST_LINE})")
    assert not findings, "\n".join(findings)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_no_document_has_a_time_of_day(document: str) -> None:
    times = [f"{document}:{number}" for number, line in _prose(document) if re.search(r"\d\d:\d\d UTC", line)]
    assert not times, f"a date is enough; runs belong to tests/bench/results: {times}"


LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")


def _anchors(document: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    found = re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_link_leads_somewhere(document: str) -> None:
    here = ROOT / document
    dead = []
    for path, anchor in LINK.findall("\n".join(line for _, line in _prose(document))):
        target = (here.parent / path).resolve() if path else here
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            dead.append(f"{path}#{anchor}")
    assert not dead, f"{document} has links that lead nowhere: {dead}"


def test_the_map_of_the_sources_names_every_room() -> None:
    """service/README.md has one row per folder with sources, and none for a folder that is gone."""
    folders = {path.parent for path in (ROOT / "service").rglob("*.[ch]pp")}
    rooms = {folder.relative_to(ROOT / "service").as_posix() for folder in folders}
    listed = set(re.findall(r"^\| `([\w/]+)` \|", (ROOT / "service/README.md").read_text(), re.MULTILINE))
    assert listed == rooms - {"app"}, f"service/README.md lacks or outlives {sorted(listed ^ (rooms - {'app'}))}"


def test_the_site_has_every_page() -> None:
    """`make docs` refuses a page without a place in the navigation, but does not run in `make test`."""
    named = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text()))
    documents = ROOT / "docs"
    pages = {path.relative_to(documents).as_posix() for path in documents.rglob("*.md")}
    pages = {page for page in pages if not page.startswith("adr/")}
    assert pages - named == set()
