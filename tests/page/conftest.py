"""The page of a real daemon in a real Chromium. Without a browser these tests are skipped."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))

from daemon import DEADLINE_S
from forwarded import Forwarded
from training import Training

try:
    from playwright.sync_api import expect, sync_playwright
except ImportError:
    expect = None  # every test is skipped

CHROMIUM = shutil.which("chromium")
ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / ("docs/images" if os.environ.get("GRADSYNC_REGENERATE") else "build/results/page")
TOKEN = "0123456789abcdef0123456789abcdef"


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    if expect is None:
        pytest.skip("playwright is missing: scripts/setup.sh installs it")
    if CHROMIUM is None:
        pytest.skip("chromium is missing: scripts/setup.sh installs it")
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium refuses to have one as root
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=sandbox)
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def training(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Training]:
    """A run of two ranks that goes on until the tests end."""
    token = tmp_path_factory.mktemp("daemon") / "token"
    token.write_text(TOKEN + "\n")
    token.chmod(0o600)
    with Training("llm-7b", "--tcp", "127.0.0.1:0", "--server-tcp-token-file", str(token)) as run:
        yield run


@pytest.fixture(scope="session")
def address(training: Training) -> Iterator[str]:
    """The page over the unix socket, as `ssh -L 9400:/run/gradsync/gradsync.sock` brings it to a browser."""
    with Forwarded(training.daemon.socket) as forwarded:
        yield forwarded.address


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A tab that notes what the browser complains of, which is nothing unless a test says so."""
    context = browser.new_context(viewport={"width": 1200, "height": 1500})
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    tab = context.new_page()
    tab.set_default_timeout(DEADLINE_S * 1000)
    tab.complaints = []
    tab.on("console", lambda message: message.type in ("error", "warning") and tab.complaints.append(message.text))
    tab.on("pageerror", lambda error: tab.complaints.append(str(error)))
    yield tab
    complaints = tab.complaints
    context.close()
    assert complaints == []
