"""Tables whose keys clients choose: with the hash of the standard library a client can choose keys that all collide."""

from __future__ import annotations

import re
from pathlib import Path

SERVICE = Path(__file__).parents[2] / "service"
TABLE = re.compile(r"std::unordered_(?:multi)?(?:map|set)<std::string(?:_view)?[^;{]*")


def unkeyed(text: str) -> list[str]:
    return [found for found in TABLE.findall(text) if "KeyedHash" not in found]


def test_every_table_of_texts_has_a_keyed_hash() -> None:
    found = {
        str(path.relative_to(SERVICE)): tables
        for path in sorted(SERVICE.rglob("*.[ch]pp"))
        if (tables := unkeyed(path.read_text()))
    }
    assert not found, "give them KeyedHash (base/text/hash.hpp), or use an ordered table"


def test_a_table_without_one_is_found() -> None:
    assert unkeyed("  std::unordered_set<std::string_view> seen;") == ["std::unordered_set<std::string_view> seen"]
    assert not unkeyed("  std::unordered_map<std::string, std::size_t, KeyedHash> index_;")
