"""The viewer in a real browser: bait stays text, nothing leaves, curves and keys work, and everybody can read it."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select, WebDriverWait

from mempo.view.app import create_app
from mempo.view.folder import ViewedFolder
from mempo.view.report import write_report
from tests.view.build import facts, make_run, played

pytestmark = pytest.mark.browser
PICTURES = os.environ.get("MEMPO_PICTURES")  # where pictures for the docs go
WIDE, PHONE = (1200, 900), (390, 800)


@pytest.fixture(scope="module")
def browser() -> Iterator[Chrome]:
    options = ChromeOptions()
    for flag in ("headless=new", "no-sandbox", "disable-gpu", "hide-scrollbars", "force-device-scale-factor=1"):
        options.add_argument(f"--{flag}")
    driver = Chrome(options, Service("/usr/bin/chromedriver"))
    yield driver
    driver.quit()


class Trap:
    """A server that no page has any business with; `asked` is what was asked of it."""

    def __init__(self) -> None:
        asked: list[str] = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.append(self.path)
                self.send_error(404)

            def log_message(self, format: str, *args: Any) -> None: ...

        self.asked = asked
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture(scope="module")
def trap() -> Iterator[Trap]:
    made = Trap()
    yield made
    made.server.shutdown()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, trap: Trap) -> dict[str, Path]:
    """`good`, `flat`: runs with curves and a group of rollouts; `hostile`: one full of bait."""
    root = tmp_path_factory.mktemp("runs")
    made = {}
    wrong = ("<think>I guess</think><answer>Lyon; Kyoto</answer>",)
    group = [
        (played(rollout=0), facts(advantage=0.5)),
        (played(wrong, rollout=1), facts(em=0.0, score=0.0, advantage=-0.5, notes=[])),
    ]
    for name, slope in (("good", 1.0), ("flat", 0.1)):
        lines = [
            {
                "stage": "rl",
                "step": n,
                "score": slope * n / 40,
                "em": slope * n / 50,
                "format_ok": 0.85 + n / 300,
                "memory/p_mem_raw": slope * n / 60,
                "note_tokens": 20 + n,
                "update/entropy": 1 / n,
                "update/clip_fraction": 0.01 * (n % 5),
            }
            for n in range(1, 41)
        ]
        made[name] = make_run(root / name, group, lines)
    bait = (
        f"<img src={trap.address}/img onerror=\"window.planted=1;fetch('{trap.address}/x')\"> "
        f"</script><script>window.planted=1;fetch('{trap.address}/script')</script> "
        f"<svg onload=window.planted=1></svg><iframe src={trap.address}/frame></iframe>"
        f"<link rel=stylesheet href={trap.address}/css> \u202eplanted\u200b"
    )
    texts = (
        f"<think>{bait}</think><search>{bait}</search>",
        f"<mem>{bait}</mem><think>{bait}</think><search>{bait}</search>",
        f"<mem>more {bait}</mem><think>{bait}</think><answer>{bait}</answer>",
    )
    baited = [(played(texts, (bait, bait), bait), facts(question=bait, gold=[[bait]], violations={bait: 1}))]
    made["hostile"] = make_run(root / "hostile", baited, [{"stage": "rl", "step": 1, "turns": 3, bait: 1}])
    return made


@pytest.fixture(scope="module")
def site(runs: dict[str, Path]) -> Iterator[str]:
    folders = [ViewedFolder(path, name) for name, path in runs.items()]
    server = uvicorn.Server(uvicorn.Config(create_app(folders), port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        thread.join(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


def see(browser: Chrome, address: str, size: tuple[int, int] = WIDE) -> None:
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False},
    )
    browser.get(address)


def scheme(browser: Chrome, name: str) -> None:
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": name}]}
    )


HOSTILE_PAGES = (
    "/",
    "/run/2/step-1/",
    "/run/2/step-1/?text=planted",
    "/run/2/step-1/question/0",
    "/run/2/step-1/rollout/0",
)


def test_bait_is_text_and_no_request_leaves(browser: Chrome, site: str, runs: dict[str, Path], trap: Trap) -> None:
    report = runs["hostile"] / "report.html"
    write_report([runs["hostile"]], report)
    for address in (*(site + page for page in HOSTILE_PAGES), report.as_uri()):
        see(browser, address)
        assert browser.execute_script("return window.planted === undefined && document.readyState === 'complete'")
        assert browser.find_elements(By.CSS_SELECTOR, "iframe, img, link:not([href$='view.css'])") == []
        assert "planted" in browser.find_element(By.TAG_NAME, "body").text or address == site + "/"
        asked = [
            e["name"]
            for e in browser.execute_script(
                "return performance.getEntriesByType('resource').map(e => ({name: e.name}))"
            )
        ]
        assert all(name.startswith(site) for name in asked)
    assert trap.asked == []


def test_a_script_in_the_page_would_not_run(browser: Chrome, site: str) -> None:
    """The second line of defense: the policy refuses what no escaping had caught."""
    see(browser, f"{site}/run/2/step-1/rollout/0")
    browser.execute_script(
        "const s = document.createElement('script'); s.textContent = 'window.planted = 1'; document.body.append(s);"
        "const i = document.createElement('img'); i.setAttribute('onerror', 'window.planted = 1'); i.src = 'x:'; "
        "document.body.append(i);"
    )
    assert browser.execute_script("return window.planted === undefined")


def test_curves_are_drawn_with_names_ranges_and_values(browser: Chrome, site: str) -> None:
    see(browser, site)
    figures = browser.find_elements(By.TAG_NAME, "figure")
    titles = [figure.find_element(By.TAG_NAME, "b").text for figure in figures]
    assert titles[:3] == ["score", "exact match", "format kept"]
    score = figures[0]
    assert len(score.find_elements(By.CSS_SELECTOR, "polyline.curve")) == 2
    labels = browser.execute_script(
        "return [...document.querySelectorAll('figure text[class]')].map((t) => t.firstChild.data)"
    )
    assert labels[:2] == ["good", "flat"]
    assert figures[2].find_elements(By.CSS_SELECTOR, "rect.healthy")
    box = score.find_element(By.TAG_NAME, "svg")
    browser.execute_script("arguments[0].focus()", box)
    assert "step 40: good 1 · flat 0.1" in score.text
    box.send_keys("\ue012")  # left
    assert "step 39: good 0.975 · flat 0.0975" in score.text
    Select(browser.find_element(By.ID, "smooth")).select_by_value("5")
    assert len(browser.find_element(By.TAG_NAME, "figure").find_elements(By.CSS_SELECTOR, "polyline.raw")) == 2


def test_a_run_that_goes_on_is_seen(browser: Chrome, site: str, runs: dict[str, Path]) -> None:
    see(browser, site)
    with (runs["good"] / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"stage": "rl", "step": 41, "score": 0.5}) + "\n")
    WebDriverWait(browser, 15).until(
        lambda b: "41" in [t.text for t in b.find_elements(By.CSS_SELECTOR, "figure:first-of-type svg text")]
    )


def test_keys_step_through_turns_and_rollouts(browser: Chrome, site: str) -> None:
    see(browser, f"{site}/run/0/step-1/rollout/0")
    body = browser.find_element(By.TAG_NAME, "body")
    for key, place in (("j", "#turn-1"), ("j", "#turn-2"), ("k", "#turn-1")):
        body.send_keys(key)
        assert browser.current_url.endswith(place)
    colored = "return getComputedStyle(document.querySelector('.tokens .p4')).backgroundColor"
    before = browser.execute_script(colored)
    body.send_keys("cc")
    assert browser.execute_script(colored) != before
    body.send_keys("n")
    WebDriverWait(browser, 10).until(lambda b: "/rollout/1" in b.current_url)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(
    ("name", "page"),
    [
        ("runs", "/"),
        ("questions", "/run/0/step-1/"),
        ("question", "/run/0/step-1/question/0"),
        ("rollout", "/run/0/step-1/rollout/0"),
    ],
)
def test_everybody_can_read_it(browser: Chrome, site: str, theme: str, name: str, page: str) -> None:
    """No violation that axe knows, nothing wider than a phone, and a picture for the docs."""
    scheme(browser, theme)
    try:
        see(browser, site + page, PHONE)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= PHONE[0]
        see(browser, site + page)
        browser.execute_script((files("axe_core_python") / "axe.min.js").read_text("utf-8"))
        found = browser.execute_async_script("axe.run().then(arguments[arguments.length - 1])")
        told = [(one["id"], [node["html"][:120] for node in one["nodes"][:3]]) for one in found["violations"]]
        assert told == []
        if PICTURES and (name, theme) in {
            ("runs", "light"),
            ("question", "light"),
            ("rollout", "light"),
            ("rollout", "dark"),
        }:
            browser.save_screenshot(str(Path(PICTURES) / f"view-{name}{'-dark' if theme == 'dark' else ''}.png"))
    finally:
        scheme(browser, "light")
