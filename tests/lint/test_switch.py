"""Faults that are compiled into one binary: each is there when it is chosen, and only then."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "mutants"))

from mutant import Mutant  # noqa: E402
from switch import VARIABLE, is_switched, switched  # noqa: E402

SOURCE = """// A comment with a { brace.
#include <string>
namespace one {
struct Pair {
  explicit Pair(int of) : first{of}, second(of) { third = of + 1; }
  int sum() const { return first + second + third; }
  int first;
  int second;
  int third = '{' == '}' ? 4 : 0;
};
constexpr int kept() { return 7; }
/// Says "}" as often.
template <typename T>
T twice(T what) {
  const auto add = [&] { return what + what; };
  return add();
}
}  // namespace one
int main(int count, char**) {
  const std::string text = "}}}";
  if (count > 9) {
    return 99;
  }
  return one::Pair(1).sum() + one::twice(one::kept()) + static_cast<int>(text.size());
}
"""
RIGHT = 1 + 1 + 2 + 14 + 3


def fault(name: str, old: str, new: str) -> Mutant:
    return Mutant(name, "A fault.", "plan", "some.cpp", old, new)


FAULTS = {
    fault("constructor", "third = of + 1;", "third = of + 2;"): RIGHT + 1,
    fault("method", "first + second", "second"): RIGHT - 1,
    fault("method-again", "{ return first + second + third; }", "{ return 5; }"): RIGHT + 1,
    fault("lambda", "what + what", "what"): RIGHT - 7,
    fault("statement", "  if (count > 9) {\n    return 99;\n  }\n", "  if (count > 0) {\n    return 98;\n  }\n"): 98,
}
ELSEWHERE = (
    fault("initializer", "first{of}", "first{0}"),
    fault("constant", "return 7;", "return 8;"),
    fault("member", "? 4 : 0", "? 4 : 1"),
    fault("two-functions", "third; }\n  int first;", "third; }\n  long first;"),
)


def test_each_fault_is_there_when_it_is_chosen(tmp_path: Path) -> None:
    (tmp_path / "some.cpp").write_text(switched(SOURCE, FAULTS))
    subprocess.run(["c++", "-std=c++20", "some.cpp", "-o", "some"], cwd=tmp_path, check=True)
    chosen = {"": RIGHT, "unknown": RIGHT, **{each.id: status for each, status in FAULTS.items()}}
    for name, status in chosen.items():
        environment = os.environ | ({VARIABLE: name} if name else {})
        assert subprocess.run([str(tmp_path / "some")], env=environment, check=False).returncode == status, name


@pytest.mark.parametrize("mutant", [*FAULTS, *ELSEWHERE], ids=lambda mutant: str(mutant.id))
def test_only_what_lies_within_one_function_that_runs_is_chosen(mutant: Mutant) -> None:
    assert SOURCE.count(mutant.old) == 1
    assert is_switched(SOURCE, mutant) == (mutant in FAULTS)
