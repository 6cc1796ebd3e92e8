"""Whatever stands in a run, no element and no attribute of a page comes from it."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from mempo.storage.run_folder import RunFolder
from mempo.view.app import create_app
from mempo.view.folder import open_folders
from mempo.view.report import write_report
from tests.view.build import facts, make_run, played

HOSTILE = (
    "<script>planted()</script>",
    "</script><script>planted()</script>",
    "</title></style></textarea></pre><img src=x onerror=planted()>",
    '"><svg onload=planted()>',
    "' onmouseover='planted()",
    '<a href="javascript:planted()">planted</a>',
    "<iframe srcdoc='<script>planted()</script>'></iframe><!-- planted",
    "]]><meta http-equiv=refresh content='0;url=http://planted/'>",
    "{{ planted }}{% raw %}${planted}&lt;b&gt;planted",
    "\u202eplanted\u2066\u200b\ufeff\u2028\u2029",
)
BAIT = " ".join(HOSTILE)
# Notes may not hold tags of the turn language; of everything else they may.
TEXTS = (
    f"<think>{BAIT}</think><search>{BAIT}</search>",
    f"<mem>{BAIT}</mem><think>{BAIT}</think><search>planted {BAIT}</search>",
    f"<mem>{BAIT} more</mem><think>x</think><answer>{BAIT}</answer>",
)
PAGES = (
    "/",
    "/run/0/step-1/",
    "/run/0/step-1/?filter=wrong",
    "/run/0/step-1/?text=planted",
    "/run/0/step-1/question/0",
    "/run/0/step-1/rollout/0",
    "/run/0/step-1/rollout/1",
    "/run/0/nothing/",
    "/run/9/step-1/",
    "report",
)


class Seen(HTMLParser):
    """Every element, every attribute, and the text of scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.comments: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)

    def unknown_decl(self, data: str) -> None:
        self.comments.append(data)


def run_with(path: Path, bait: bool) -> Path:
    """Two rollouts of a question; `bait`: everything that a run can hold is bait, else the same in plain words."""
    said = BAIT if bait else "harmless"
    texts = [text.replace(BAIT, said) for text in TEXTS]
    record = facts(
        question=f"{said}?", gold=[[said], ["Tokyo"]], em=0.0, violations={said: 1}, error=said, unscored=said
    )
    record["notes"][0] |= {"reason": said}
    pair = [(played(texts, [said, said], f"{said}?", n), {**record, "em": float(n)}) for n in range(2)]
    lines = [{"stage": "rl", "step": 1, "score": 0.5, said: said}, {"stage": "rl", "step": 2, "score": float("nan")}]
    made = make_run(path, pair, lines)
    run = RunFolder(made)
    (made / "config.yaml").write_text(f"seed: {'planted' if bait else 7}\nrl: {{}}\n", encoding="utf-8")
    (made / "evaluation-final.json").write_text(json.dumps({said: {"em": 0.5, "questions": 2.0, said: said}}))
    (made / "commands.jsonl").write_text(json.dumps({"command": said, "ended": said, "versions": {said: said}}) + "\n")
    assert run.metrics()
    return made


@cache
def pages(root: Path) -> dict[tuple[bool, str], str]:
    found = {}
    for bait in (False, True):
        name = '"><script>planted()' if bait else "plain"
        folder = run_with(root / name.replace("/", ""), bait)
        client = TestClient(create_app(open_folders([folder])), base_url="http://localhost")
        report = root / f"{bait}.html"
        write_report([folder], report)
        for page in PAGES:
            text = report.read_text("utf-8") if page == "report" else client.get(page).text
            found[bait, page] = text
    return found


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("view")


def parsed(text: str) -> Seen:
    seen = Seen()
    seen.feed(text)
    seen.close()
    return seen


@pytest.mark.parametrize("page", PAGES)
def test_no_element_and_no_attribute_comes_from_the_data(root: Path, page: str) -> None:
    plain, baited = (parsed(pages(root)[bait, page]) for bait in (False, True))
    assert baited.elements.keys() <= plain.elements.keys() | {"del", "ins"}
    assert baited.elements["script"] == plain.elements["script"]
    assert baited.comments == []
    assert {(tag, name) for tag, name, _ in baited.attributes} <= {(tag, name) for tag, name, _ in plain.attributes}
    values = [value for tag, name, value in baited.attributes if (tag, name) != ("input", "value")]
    assert not [value for value in values if "planted" in value]


@pytest.mark.parametrize("page", PAGES)
def test_nothing_reorders_or_hides_text(root: Path, page: str) -> None:
    text = pages(root)[True, page]
    assert not set(text) & set("\u202e\u2066\u200b\ufeff\u2028\u2029")


@pytest.mark.parametrize("page", ["/run/0/step-1/question/0", "/run/0/step-1/rollout/0", "report"])
def test_the_bait_is_there_to_be_read(root: Path, page: str) -> None:
    assert "&lt;script&gt;planted()&lt;/script&gt;" in pages(root)[True, page]
    assert "⟨U+202E⟩planted⟨U+2066⟩" in pages(root)[True, page]


def test_what_is_searched_for_is_escaped_too(root: Path) -> None:
    folder = run_with(root / "searched", bait=False)
    client = TestClient(create_app(open_folders([folder])), base_url="http://localhost")
    seen = parsed(client.get("/run/0/step-1/", params={"text": BAIT, "filter": BAIT}).text)
    plain = parsed(client.get("/run/0/step-1/", params={"text": "nowhere"}).text)
    assert seen.elements == plain.elements
