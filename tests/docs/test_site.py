"""The documentation as a site, which `make docs` has built in build/docs. Its build checks links."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest

from gradsync import errors

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "build" / "docs"


class Asked(HTMLParser):
    """What a browser fetches to show a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        address = given.get("href") if tag == "link" and given.get("rel") != "canonical" else given.get("src")
        if address:
            self.addresses.append(address)


def pages() -> list[Path]:
    return sorted(SITE.rglob("*.html"))


@pytest.fixture(autouse=True, scope="module")
def site() -> None:
    assert (SITE / "index.html").exists(), "build it with `make docs`"


def kinds() -> list[str]:
    found = sorted(each.KIND for each in errors.RpcError.__subclasses__())
    assert len(found) > 40
    return found


def test_each_kind_of_error_has_a_page_with_a_way_out() -> None:
    table = (SITE / "errors" / "index.html").read_text()
    for kind in kinds():
        page = SITE / "errors" / kind / "index.html"
        assert page.exists(), kind
        assert "What to do" in page.read_text()
        assert f'href="{kind}/"' in table


def test_a_page_of_an_error_names_when_it_comes() -> None:
    assert "SIGSTOP" in (SITE / "errors" / "step_timeout" / "index.html").read_text()


def test_the_reference_has_what_the_packages_export() -> None:
    text = (SITE / "reference" / "index.html").read_text()
    for name in ("gradsync.torch.attach", "gradsync.torch.init", "gradsync.Clip", "gradsync.errors.RankLost"):
        assert f'id="{name}"' in text, name


def test_nothing_is_asked_of_another_host() -> None:
    for page in pages():
        asked = Asked()
        asked.feed(page.read_text())
        away = [each for each in asked.addresses if each.startswith(("http:", "https:", "//"))]
        assert not away, f"{page} asks for {away}"
