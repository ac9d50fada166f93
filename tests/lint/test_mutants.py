"""The planted faults still apply: a changed line would leave a fault unplanted until somebody runs `make mutants`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "mutants"))

from mutant import Mutant  # noqa: E402

# By its path: benchmarks have a `run` as well, which another test of this folder imports.
_SPEC = importlib.util.spec_from_file_location("planted_faults", ROOT / "tests" / "mutants" / "run.py")
assert _SPEC is not None
assert _SPEC.loader is not None
_RUN = importlib.util.module_from_spec(_SPEC)
sys.modules[_SPEC.name] = _RUN
_SPEC.loader.exec_module(_RUN)
MUTANTS = _RUN.MUTANTS


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: str(mutant.id))
def test_the_text_of_a_fault_occurs_once(mutant: Mutant) -> None:
    assert (ROOT / mutant.path).read_text().count(mutant.old) == 1
    assert mutant.old != mutant.new


def test_no_two_faults_share_a_name() -> None:
    assert len({mutant.id for mutant in MUTANTS}) == len(MUTANTS)
