"""Compiles many faults into one binary: a function with faults has its body once for each, and a variable chooses.

`GRADSYNC_FAULT=id` in the environment of a process plants that fault in it; without it the function is as it was.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from mutant import Mutant

__all__ = ["VARIABLE", "is_switched", "switched"]

VARIABLE = "GRADSYNC_FAULT"
PRELUDE = f"""#ifndef GRADSYNC_IS_PLANTED
#include <cstdlib>
#include <cstring>
inline bool gradsync_is_planted(const char* fault) {{
  const char* chosen = std::getenv("{VARIABLE}");
  return chosen != nullptr && std::strcmp(chosen, fault) == 0;
}}
#define GRADSYNC_IS_PLANTED(fault) ([] {{ static const bool is = gradsync_is_planted(fault); return is; }}())
#endif
"""
# What braces are no code: comments and literals. A quote between digits separates them.
OPAQUE = re.compile(
    r"""//[^\n]*|/\*.*?\*/|R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'""",
    re.DOTALL,
)
OPENS_SCOPE = re.compile(r"\b(namespace|class|struct|union|enum|extern)\b[^()]*$")
OPENS_BODY = re.compile(r"(\)|\}|\bconst|\bnoexcept|\boverride|\bfinal|->\s*[\w:<>,&*\s]+)\s*$")
IS_CONSTANT = re.compile(r"\b(constexpr|consteval)\b")


@dataclass(frozen=True)
class Body:
    """A function from its brace to behind the one that closes it."""

    start: int
    end: int


def bodies(source: str) -> list[Body]:
    """All functions that can choose while they run, in the order of the text."""
    code = OPAQUE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), source)
    found: list[Body] = []
    head = start = depth = 0  # where a declaration begins, its braces, and how many of them are open
    chooses = False
    for at, character in enumerate(code):
        if depth > 0:
            depth += {"{": 1, "}": -1}.get(character, 0)
            if depth == 0:
                found += [Body(start, at + 1)] if chooses else []
                head = at + 1 if chooses else at  # behind braces of an initializer the declaration goes on
        elif character == "{" and not OPENS_SCOPE.search(code, head, at):
            start, depth = at, 1
            chooses = bool(OPENS_BODY.search(code, head, at)) and not IS_CONSTANT.search(code, head, at)
        elif character in ";{}":
            head = at + 1
    return found


def body_of(source: str, mutant: Mutant) -> Body | None:
    at = source.find(mutant.old)
    inside = (body for body in bodies(source) if body.start <= at and at + len(mutant.old) <= body.end)
    return next(inside, None)


def is_switched(source: str, mutant: Mutant) -> bool:
    """Whether it can be compiled beside the right code: it lies within one function that is no constant expression."""
    return mutant.path.endswith((".cpp", ".hpp")) and body_of(source, mutant) is not None


def switched(source: str, mutants: Iterable[Mutant]) -> str:
    """With all of these faults, none of which is planted until a process starts that chooses it."""
    of_body: dict[Body, list[Mutant]] = {}
    for mutant in mutants:
        body = body_of(source, mutant)
        assert body is not None, mutant.id
        of_body.setdefault(body, []).append(mutant)
    for body in sorted(of_body, key=lambda each: -each.start):
        right = source[body.start : body.end]
        ways = [
            f'if (GRADSYNC_IS_PLANTED("{each.id}")) {right.replace(each.old, each.new)} else ' for each in of_body[body]
        ]
        source = f"{source[: body.start]}{{ {''.join(ways)}{right} }}{source[body.end :]}"
    return PRELUDE + source
