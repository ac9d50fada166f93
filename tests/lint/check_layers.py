"""Checks that includes of `service/`, `kernels/` and `arithmetic/` point down and go in no circle, and a few rules that
keep layers apart.

    check_layers.py [ROOT]

Prints `file:line: what is wrong (what to do)` for every finding and exits 1 when there was one. Long files are
warnings, which do not fail. Standard library only.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

# What a layer may include besides itself; the diagram is in service/README.md.
_PURE = {"base", "plan"}
_ENGINE = {"base", "plan", "policy", "device", "collective"}
ALLOWED: dict[str, set[str]] = {
    "arithmetic": set(),
    "base": set(),
    "plan": {"arithmetic", "base"},
    "policy": _PURE,
    "kernels": {"arithmetic"},
    "device": _PURE | {"policy", "kernels", "arithmetic"},
    "collective": _PURE | {"policy", "kernels"},
    "engine": _ENGINE,
    "rpc": _ENGINE | {"engine"},
    "net": {"base"},
    "app": _ENGINE | {"engine", "rpc", "net", "kernels"},
}

JSON_LAYERS = {"rpc", "app"}
MAX_LINES = 400
# A name that says nothing about the content; a file is named after its main type.
EMPTY_NAMES = {"utils", "util", "common", "misc", "helpers", "manager", "impl"}
SOURCES = {".cpp", ".hpp", ".cu", ".cuh"}

_INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"(?P<quoted>[^"]*)"|<(?P<angled>[^>]*)>)')
_BLOCK_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_CUDA_HEADER = re.compile(r"^(cuda|cublas|cooperative_groups|nccl)[\w./]*$")


@dataclass(frozen=True)
class Finding:
    path: Path
    line: int
    text: str
    warning: bool = False

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {'warning: ' if self.warning else ''}{self.text}"


def _project_include(path: Path, number: int, layer: str, target: str) -> list[Finding]:
    if ".." in Path(target).parts:
        return [Finding(path, number, f'"{target}" climbs out of its folder (write "layer/file.hpp")')]
    owner = target.split("/", 1)[0] if "/" in target else None
    if owner is None:
        return [Finding(path, number, f'"{target}" does not name its layer (write "{layer}/{target}")')]
    if owner not in ALLOWED:
        return [Finding(path, number, f'"{target}" is not of a layer (headers of others go in <>)')]
    if owner != layer and owner not in ALLOWED[layer]:
        allowed = ", ".join(sorted(ALLOWED[layer])) or "nothing"
        return [Finding(path, number, f'{layer} includes "{target}", but may include {allowed} (arrows point down)')]
    return []


def _heavy_include(path: Path, number: int, layer: str, target: str) -> list[Finding]:
    findings = []
    if path.suffix == ".hpp" and target.startswith("boost/beast"):
        findings.append(Finding(path, number, f"<{target}> in a header (Beast stays in .cpp files or behind a pimpl)"))
    if path.suffix == ".hpp" and _CUDA_HEADER.match(target):
        findings.append(Finding(path, number, f"<{target}> in a header (CUDA stays in .cpp and .cu files)"))
    if layer not in JSON_LAYERS and target.startswith("nlohmann/"):
        findings.append(Finding(path, number, f"<{target}> in {layer} (JSON is known to rpc and app only)"))
    return findings


def _blank_comments(text: str) -> str:
    """The text without block comments, its lines where they were."""
    return _BLOCK_COMMENT.sub(lambda match: "\n" * match.group().count("\n"), text)


def check_file(root: Path, path: Path, layer: str) -> list[Finding]:
    shown = path.relative_to(root)
    text = path.read_text(encoding="utf-8")
    findings = []
    if EMPTY_NAMES.intersection(path.stem.split("_")):
        findings.append(Finding(shown, 1, f"'{path.name}' says nothing (name a file after its main type)"))
    for number, line in enumerate(_blank_comments(text).splitlines(), start=1):
        match = _INCLUDE.match(line)
        if match is None:
            continue
        target = match["quoted"] or match["angled"] or ""
        # The kernels are a library of their own, whose files name each other without a folder.
        own_kernel = layer == "kernels" and "/" not in target
        if (match["quoted"] is not None or ".." in Path(target).parts) and not own_kernel:
            findings += _project_include(shown, number, layer, target)
        findings += _heavy_include(shown, number, layer, target)
    lines = text.count("\n")
    if lines > MAX_LINES:
        findings.append(Finding(shown, lines, f"{lines} lines (split it: at most {MAX_LINES})", warning=True))
    return findings


def _included_headers(service: Path, path: Path) -> dict[str, int]:
    """The headers of `service/` that a file includes, with the lines where it does."""
    lines = _blank_comments(path.read_text(encoding="utf-8")).splitlines()
    matches = ((number, _INCLUDE.match(line)) for number, line in enumerate(lines, start=1))
    found = {match["quoted"]: number for number, match in matches if match is not None and match["quoted"]}
    return {target: number for target, number in found.items() if (service / target).is_file()}


def check_circles(root: Path) -> list[Finding]:
    """Every header that leads back to itself; the finding names one way."""
    service = root / "service"
    includes = {str(p.relative_to(service)): _included_headers(service, p) for p in sorted(service.rglob("*.hpp"))}
    findings = []
    for start in includes:
        ways = [[start]]
        seen: set[str] = set()
        while ways:
            way = ways.pop()
            for target in includes.get(way[-1], {}):
                if target == start:
                    circle = [*way, start]
                    text = f"includes itself: {' → '.join(circle)} (move what they share into a header of its own)"
                    findings.append(Finding(Path("service") / start, includes[start][circle[1]], text))
                    ways = []
                    break
                if target not in seen:
                    seen.add(target)
                    ways.append([*way, target])
    return findings


def check_tree(root: Path) -> list[Finding]:
    findings = check_circles(root)
    for folder in (root / "service", root / "kernels", root / "arithmetic"):
        for path in sorted(folder.rglob("*")):
            if path.suffix not in SOURCES or not path.is_file():
                continue
            layer = path.relative_to(folder).parts[0] if folder.name == "service" else folder.name
            if layer not in ALLOWED:
                shown = path.relative_to(root)
                findings.append(Finding(shown, 1, f"'{layer}' is not a layer ({', '.join(sorted(ALLOWED))})"))
                continue
            findings += check_file(root, path, layer)
    return findings


def main(arguments: list[str]) -> int:
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parents[2]
    if not (root / "service").is_dir():
        print(f"{root} has no folder service: nothing was checked", file=sys.stderr)
        return 2
    findings = check_tree(root)
    for finding in findings:
        print(finding)
    errors = [finding for finding in findings if not finding.warning]
    print(f"layers: {len(errors)} errors, {len(findings) - len(errors)} warnings")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
