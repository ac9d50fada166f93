"""Writes the examples of docs/protocol.md from the transcripts. `--check` writes nothing and fails when they differ.

A mark `<!-- example: name -->` is followed by a generated block up to `<!-- end -->`. The block quotes, in order, the
lines of the transcripts that say `"example": name`.
"""

import json
import re
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
PROTOCOL = FOLDER.parent.parent / "docs" / "protocol.md"
MARK = re.compile(r"<!-- example: ([a-z_.]+) -->\n(?:```text\n.*?\n```\n<!-- end -->\n)?", re.DOTALL)


def error_message(expected: dict[str, object], codes: dict[str, dict[str, object]]) -> dict[str, object]:
    """The whole message of an `expect_error` line."""
    row = codes[str(expected["kind"])]
    hint = f"<text> (gradsyncd explain {expected['kind']})"
    data = {"kind": expected["kind"], "retryable": row["retryable"], "hint": hint}
    data |= {key: value for key, value in expected.items() if key not in ("id", "kind", "message")}
    error = {"code": row["code"], "message": expected.get("message", "<text>"), "data": data}
    return {"jsonrpc": "2.0", "id": expected["id"], "error": error}


def quote(line: dict[str, object], codes: dict[str, dict[str, object]]) -> str:
    if "send_text" in line:
        return f"→ {line['send_text']}"
    if "send" in line:
        return "→ " + json.dumps(line["send"], ensure_ascii=False)
    message = error_message(line["expect_error"], codes) if "expect_error" in line else line["expect"]  # type: ignore[arg-type]
    return "← " + json.dumps(message, ensure_ascii=False).replace(', "...": true', ", …")


def examples() -> dict[str, list[str]]:
    codes = {row["kind"]: row for row in json.loads((FOLDER / "error_codes.json").read_text())}
    found: dict[str, list[str]] = {}
    for path in sorted(FOLDER.glob("*.jsonl")):
        for text in path.read_text().splitlines():
            line = json.loads(text) if text else {}
            if "example" in line:
                found.setdefault(line["example"], []).append(quote(line, codes))
    return found


def generated(text: str) -> str:
    quotes = examples()
    used: set[str] = set()

    def block(mark: re.Match[str]) -> str:
        name = mark[1]
        used.add(name)
        if name not in quotes:
            raise SystemExit(f'docs/protocol.md: no transcript line says "example": "{name}"')
        body = "\n".join(quotes[name])
        return f"<!-- example: {name} -->\n```text\n{body}\n```\n<!-- end -->\n"

    result = MARK.sub(block, text)
    if unused := set(quotes) - used:
        raise SystemExit(f"docs/protocol.md has no mark for the examples {sorted(unused)}")
    return result


def main() -> int:
    text = PROTOCOL.read_text()
    result = generated(text)
    if "--check" in sys.argv[1:]:
        if result != text:
            print("docs/protocol.md differs from the transcripts: run update_protocol.py", file=sys.stderr)
            return 1
        return 0
    PROTOCOL.write_text(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
