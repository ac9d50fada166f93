"""What `mkdocs.yml` hooks into the building: decisions, a page for each kind of error, links that leave docs.

The pages are made of the one table in docs/errors.md, and of the rows of docs/operate/failures.md that name the kind.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
FAILURES = "operate/failures.md"
KIND = re.compile(r"^`([a-z_]+)`$")
LINK = re.compile(r"\[([^\]]+)\]\((\.\./[^)#]+)(#[^)]*)?\)")


def rows_of(page: Path) -> list[list[str]]:
    """The cells of every row of its tables, without heads."""
    rows = []
    for line in page.read_text().splitlines():
        if line.startswith("|") and not line.startswith("|---"):
            rows.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))])
    return rows


def from_errors(markdown: str, page: str) -> str:
    """Links of a page of docs, as they are from the folder `errors`."""

    def moved(link: re.Match[str]) -> str:
        target, mark, anchor = link[1].partition("#")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page), target)) if target else page
        return f"](../{path}{mark}{anchor})"

    return re.sub(r"\]\((?!https?:)([^)]+)\)", moved, markdown)


def page_of(row: list[str], failures: list[list[str]]) -> str:
    kind, code, http, retry, meaning, way_out = row
    name = kind.strip("`")
    text = [
        f"# {name}",
        "",
        from_errors(meaning, "errors.md"),
        "",
        "## What to do",
        "",
        from_errors(way_out, "errors.md"),
        "",
        f"The same call can succeed later: {retry}. JSON-RPC code {code}; a failed `POST /rpc` has status {http}.",
    ]
    seen = [row for row in failures if len(row) == 4 and kind in " ".join(row[1:])]
    if seen:
        text += ["", "## When it comes", "", "| what happens | how it is noticed | what to do |", "|---|---|---|"]
        text += [f"| {from_errors(' | '.join((row[0], row[1], row[3])), FAILURES)} |" for row in seen]
    return "\n".join([*text, "", f"[All kinds](../errors.md) · [what fails, and how](../{FAILURES})", ""])


def on_config(config: Any) -> Any:
    decisions = sorted(path.relative_to(DOCS).as_posix() for path in (DOCS / "adr").glob("0*.md"))
    config["nav"].append({"Decisions": decisions})
    return config


def on_files(files: Files, config: Any) -> Files:
    failures = rows_of(DOCS / FAILURES)
    kinds = [row for row in rows_of(DOCS / "errors.md") if KIND.match(row[0])]
    if not kinds:
        raise PluginError("docs/errors.md has no table of kinds")
    for row in kinds:
        name = row[0].strip("`")
        files.append(File.generated(config, f"errors/{name}.md", content=page_of(row, failures)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """A file outside docs becomes its path, since the site does not have it; a kind in the table gets its link."""

    def named(link: re.Match[str]) -> str:
        target = (Path(page.file.abs_src_path or DOCS / page.file.src_uri).parent / link[2]).resolve()
        if DOCS in target.parents:
            return link[0]
        if not target.exists():
            raise PluginError(f"{page.file.src_uri} names {link[2]}, which does not exist")
        return f"{link[1]} (`{target.relative_to(ROOT)}`)"

    markdown = LINK.sub(named, markdown)
    if page.file.src_uri == "errors.md":
        markdown = re.sub(r"^\| `([a-z_]+)` \|", r"| [`\1`](errors/\1.md) |", markdown, flags=re.MULTILINE)
    return markdown
