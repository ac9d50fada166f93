"""The Python in the documents compiles, and names only what there is: modules, attributes, and arguments of calls.

docs/guide.md has scripts that are run as they stand, in tests/integration/training/test_guide.py.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import gradsync
import gradsync.torch
import gradsync.trackers

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/**/*.md") if path.parent.name != "adr")
DOCUMENTS = ["README.md", "clients/python/README.md", *PAGES]
# What a block that begins in the middle of a script means by these names.
MEANT: dict[str, Any] = {
    "gradsync": gradsync,
    "torch": torch,
    "client": gradsync.Client,
    "job": gradsync.Job,
    "grads": gradsync.Grads,
    "report": gradsync.StepReport,
    "gs": gradsync.torch.GradSync,
    "tracker": gradsync.trackers.JsonlTracker,
}
BLOCKS = [
    (document, number, text)
    for document in DOCUMENTS
    for number, text in enumerate(
        re.findall(r"^```python\n(.*?)^```$", (ROOT / document).read_text(), re.MULTILINE | re.DOTALL)
    )
    if not text.startswith("# train_")
]


def wrong_names(text: str) -> Iterator[str]:
    """What the block names and is not there."""
    tree = ast.parse(text.replace("…", "..."))
    known = dict(MEANT)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                module = importlib.import_module(one.name)
                known[one.asname or one.name.split(".")[0]] = (
                    module if one.asname else importlib.import_module(one.name.split(".")[0])
                )
        elif isinstance(node, ast.ImportFrom):
            module = importlib.import_module(str(node.module))
            yield from (f"{node.module}.{one.name}" for one in node.names if not hasattr(module, one.name))
            known |= {one.asname or one.name: getattr(module, one.name, None) for one in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not _is_there(node, known):
            yield ast.unparse(node)
        elif isinstance(node, ast.Call):
            yield from _wrong_arguments(node, known)


def _meant(node: ast.AST, known: dict[str, Any]) -> Any:
    """The object of a name, or of a chain of attributes; None where it is the script's own."""
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = _meant(node.value, known)
        return None if owner is None else getattr(owner, node.attr, None)
    return None


def _is_there(node: ast.Attribute, known: dict[str, Any]) -> bool:
    owner = _meant(node.value, known)
    return owner is None or hasattr(owner, node.attr)


def _wrong_arguments(node: ast.Call, known: dict[str, Any]) -> Iterator[str]:
    called = _meant(node.func, known)
    if called is None or not str(getattr(called, "__module__", "")).startswith("gradsync"):
        return
    of_an_object = isinstance(node.func, ast.Attribute) and inspect.isclass(_meant(node.func.value, known))
    unbound = of_an_object and inspect.isfunction(called)  # a method, of an object that the name stands for
    given = [None] * (len(node.args) + unbound)
    try:
        inspect.signature(called).bind_partial(*given, **{str(one.arg): None for one in node.keywords if one.arg})
    except TypeError as error:
        yield f"{ast.unparse(node)}: {error}"


@pytest.mark.parametrize(("document", "number", "text"), BLOCKS, ids=[f"{one}-{number}" for one, number, _ in BLOCKS])
def test_a_block_compiles_and_names_only_what_there_is(document: str, number: int, text: str) -> None:
    compile(text.replace("…", "..."), f"{document}, block {number}", "exec")
    assert not list(wrong_names(text))


def test_all_documents_with_python_are_read() -> None:
    names = ("README.md", "clients/python/README.md")
    docs = tuple(f"docs/{name}.md" for name in ("amp", "audit", "clipping", "operate/failures", "observe"))
    assert {document for document, _, _ in BLOCKS} >= {*names, *docs}


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("from gradsync import Partial, Partia", "gradsync.Partia"),
        ("import gradsync.torch as gst\ngst.clip_norm_(model)", "gst.clip_norm_"),
        ("gradsync.Clip(maximum=1.0)", "maximum"),
        ("gs.finish(grad_scaler=scaler)", "grad_scaler"),
        ("gradsync.Clip.percentile(roof=1.0)", "roof"),
        ("print(report.gradient_norm)", "report.gradient_norm"),
    ],
)
def test_a_name_that_is_not_there_is_found(text: str, wrong: str) -> None:
    (said,) = wrong_names(text)
    assert wrong in said
