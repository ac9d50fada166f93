"""What a browser shows of a run, and how it can be read and used."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from typing import Any

import pytest
from conftest import PICTURES, TOKEN, expect
from daemon import DEADLINE_S
from forwarded import Forwarded
from training import Training


def opened(page: Any, address: str) -> Any:
    page.goto(address)
    expect(page.locator("#connection")).to_have_text("live")
    return page


def committed(page: Any) -> int:
    return int(page.locator("#facts div", has_text="committed").locator("dd").inner_text().split()[0])


def test_a_run_is_shown_with_all_that_the_daemon_knows_of_it(page: Any, address: str) -> None:
    opened(page, address)
    expect(page.locator("#jobs a")).to_have_text(["llm-7bstepping, 2 ranks"], use_inner_text=False)
    expect(page.locator("#job-name")).to_have_text("llm-7b")
    expect(page.locator("#ranks tbody tr")).to_have_count(2)
    expect(page.locator("#ranks tbody th")).to_have_text(["0", "1"])
    expect(page.locator("#policies tbody tr").first).to_contain_text("fixed")
    expect(page.locator("#policies tbody tr").first).to_contain_text("100")
    assert page.locator(".curve").get_attribute("d").count("L") > 30
    assert page.locator(".limit").count() == 1
    assert page.locator(".mark-clipped").count() > 0
    assert page.locator(".mark-nonfinite").count() == page.locator(".mark-skipped").count() > 0
    expect(page.locator("#findings")).to_contain_text(
        re.compile(r"step \d+: tensor 'mlp' has 3 values that are not finite: rank 1 brought 3")
    )
    expect(page.locator("#communicators-section")).to_be_hidden()


def test_the_late_rank_stands_out(page: Any, address: str) -> None:
    opened(page, address)
    rows = {
        row[0]: row
        for row in page.locator("#ranks tbody tr").evaluate_all(
            "rows => rows.map((row) => [...row.children].map((cell) => cell.textContent))"
        )
    }
    times = {rank: int(row[4].split()[0]) if row[4] != "–" else 0 for rank, row in rows.items()}
    assert times["1"] > 25
    assert times["1"] > times["0"]


def test_the_buckets_of_a_step_are_bars_and_a_table(page: Any, address: str) -> None:
    opened(page, address)
    buckets = page.locator("#buckets tbody tr")
    bars = "[document.querySelectorAll('.bar-reducing').length, document.querySelectorAll('#buckets tbody tr').length]"
    drawn, listed = page.evaluate(bars)
    assert drawn == listed > 1
    expect(page.locator("#timeline")).to_contain_text("last rank asks")
    page.locator("section:has(#buckets) summary").click()
    expect(buckets.first.locator("td").nth(0)).to_have_text("reduced")
    choices = page.locator("#timeline-attempt option")
    assert choices.count() > 2
    page.locator("#timeline-attempt").select_option(index=1)
    chosen = page.locator("#timeline-attempt option:checked").inner_text()
    page.wait_for_timeout(1500)
    assert page.locator("#timeline-summary").inner_text().startswith(chosen), "newer steps took it away"


def test_the_page_goes_on_with_the_run(page: Any, address: str) -> None:
    opened(page, address)
    before = committed(page)
    deadline = time.monotonic() + DEADLINE_S
    while committed(page) <= before + 10:
        assert time.monotonic() < deadline, "the page stands still"
        page.wait_for_timeout(50)
    link = page.locator("#jobs a").element_handle()
    page.wait_for_timeout(1200)
    assert link.evaluate("link => link.isConnected"), "what a reader focuses is made anew"


def test_a_killed_rank_is_shown_within_two_seconds(browser: Any, page: Any) -> None:
    with Training("to-be-killed") as run, Forwarded(run.daemon.socket) as forwarded:
        opened(page, forwarded.address)
        run.ranks[1].kill()
        begun = time.monotonic()
        expect(
            page.locator("#ranks tr:has(th:text-is('1')) .bad").or_(page.locator("#absent:has-text('rank 1')"))
        ).to_be_visible()
        assert time.monotonic() - begun < 2
        expect(page.locator("#announcer")).to_contain_text("rank 1 is")
        expect(page.locator("#reason")).to_contain_text("rank 1")
        expect(page.locator("#findings li").first).to_contain_text("failed")
        run.ranks[0].kill()
        expect(page.locator("#job-state")).to_have_text("gone")
        expect(page.locator("#findings li").first).to_contain_text("failed")
        run.daemon.process.kill()
        expect(page.locator("#connection")).to_contain_text("no answer for")
    page.complaints = [text for text in page.complaints if "ERR_" not in text]  # of requests that nobody answers


def test_steps_are_read_out_by_the_keyboard(page: Any, address: str) -> None:
    opened(page, address)
    page.locator("#norm-step").focus()
    page.keyboard.press("Home")
    first = page.locator("#norm-readout").inner_text()
    assert first.startswith("step ")
    assert "norm " in first
    page.keyboard.press("ArrowRight")
    assert page.locator("#norm-readout").inner_text() != first
    assert page.locator("#norm-step").get_attribute("aria-valuetext") == page.locator("#norm-readout").inner_text()
    page.locator("a.skip").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#content")).to_be_focused()


@pytest.mark.parametrize("part", ["status", "steps"])
def test_a_copied_command_gets_what_the_page_shows(page: Any, address: str, part: str) -> None:
    opened(page, address)
    page.locator(f"button[data-curl={part}]").first.press("Enter")
    expect(page.locator("#announcer")).to_contain_text("copied: curl")
    command = page.evaluate("navigator.clipboard.readText()")
    answer = json.loads(subprocess.run(command, shell=True, capture_output=True, timeout=30, check=True).stdout)
    assert (answer["jobs"][0] if part == "status" else answer)["job"] == "llm-7b"


def test_over_tcp_the_page_asks_for_the_token(page: Any, training: Training) -> None:
    page.goto(f"http://{training.daemon.fields['tcp']}/")
    page.locator("#token").fill("not the token of that file")
    page.keyboard.press("Enter")
    expect(page.locator("#token-answer")).to_have_text("this token is not the right one")
    expect(page.locator("#layout")).to_be_hidden()
    page.locator("#token").fill(TOKEN)
    page.keyboard.press("Enter")
    expect(page.locator("#job-name")).to_have_text("llm-7b")
    page.locator("button[data-curl=status]").first.click()
    command = page.evaluate("navigator.clipboard.readText()")
    assert TOKEN not in command
    environment = {**os.environ, "GRADSYNC_TOKEN": TOKEN}
    said = subprocess.run(command, shell=True, capture_output=True, timeout=30, check=True, env=environment)
    assert json.loads(said.stdout)["jobs"][0]["job"] == "llm-7b"
    assert page.complaints, "Chromium names each request that was refused"
    page.complaints = [text for text in page.complaints if "401" not in text]


def test_a_token_in_the_address_is_used_and_taken_away(page: Any, training: Training) -> None:
    page.goto(f"http://{training.daemon.fields['tcp']}/#token={TOKEN}")
    expect(page.locator("#job-name")).to_have_text("llm-7b")
    assert TOKEN not in page.url
    page.reload()
    expect(page.locator("#job-name")).to_have_text("llm-7b")


def test_the_health_port_shows_the_daemon_and_no_job(page: Any, training: Training) -> None:
    opened(page, f"http://{training.daemon.fields['health']}/")
    expect(page.locator("#daemon")).to_contain_text("serving")
    expect(page.locator("#hint")).to_contain_text("gradsyncd status")
    expect(page.locator("#layout")).to_be_hidden()


def test_without_scripts_there_is_the_text_page(browser: Any, address: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(address)
    page.wait_for_url("**/text")
    expect(page.locator("h2")).to_have_text("llm-7b")
    context.close()


def test_what_this_run_cannot_have_is_shown_too(page: Any, address: str) -> None:
    """Copies that differ and communicators, put into the daemon's answers."""

    def steps(route: Any) -> None:
        answer = route.fetch().json()
        suspects = {"tensor": "head", "ranks": [1], "majority": [0, 2], "suspects": [1]}
        answer["findings"].append(
            {
                "step": 7,
                "nonfinite": [],
                "divergence": [suspects],
                "missing": [{"tensor": "<b>bold</b>", "ranks": [0, 1]}],
                "left_out": 3,
            }
        )
        route.fulfill(json=answer)

    def status(route: Any) -> None:
        answer = route.fetch().json()
        answer["jobs"][0]["communicators"] = [
            {
                "name": "dp-00ff",
                "ranks": [0, 1],
                "transport": "nccl",
                "epoch": 4,
                "state": "reducing",
                "sent_bytes": 2048,
                "received_bytes": 5 << 20,
                "operations": 9,
                "operations_per_step": 3,
                "last_use_age_s": 0.5,
            }
        ]
        route.fulfill(json=answer)

    page.route("**/steps?*", steps)
    page.route("**/status", status)
    opened(page, address)
    findings = page.locator("#findings")
    expect(findings).to_contain_text("step 7: copies of tensor 'head' differ: rank 1 from the other ranks")
    expect(findings).to_contain_text("step 7: tensor '<b>bold</b>' has a gradient, and none on ranks 0, 1")
    expect(findings).to_contain_text("step 7: 3 more tensors")
    expect(page.locator("#communicators tbody tr")).to_contain_text("2.0 KiB")
    expect(page.locator("#communicators tbody tr")).to_contain_text("9, 3 a step")
    page.unroute_all(behavior="wait")


@pytest.mark.parametrize(("scheme", "rules"), [("light", None), ("dark", ["color-contrast"])])
def test_it_is_accessible_in_light_and_dark(page: Any, address: str, scheme: str, rules: list[str] | None) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    page.emulate_media(color_scheme=scheme)
    opened(page, address)
    for summary in page.locator("summary").all():
        summary.click()
    found = axe.Axe().run(page, options={"resultTypes": ["violations"], **({"runOnly": rules} if rules else {})})
    serious = [one for one in found.response["violations"] if one["impact"] in ("serious", "critical")]
    assert serious == [], json.dumps(serious, indent=1)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pictures_for_the_documentation(page: Any, address: str, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    opened(page, address)
    PICTURES.mkdir(parents=True, exist_ok=True)
    picture = page.screenshot(
        path=PICTURES / f"page-{scheme}.png", clip={"x": 0, "y": 0, "width": 1200, "height": 1480}
    )
    assert len(picture) > 20_000
