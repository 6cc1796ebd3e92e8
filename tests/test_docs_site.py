"""The documentation as a whole: every page is in the navigation and the index, and what code says pages repeat."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mempo.diagnose.checks import CHECKS
from mempo.rewards.rollout_metrics import aggregate
from mempo.train.rl import UPDATE_MEASURES
from mempo.view.curves import CHARTS

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = {page.name for page in DOCS.glob("*.md")}
METRICS = (DOCS / "metrics.md").read_text("utf-8")


def navigation(entries: Any) -> Iterator[str]:
    for entry in entries:
        for value in entry.values():
            yield from [value] if isinstance(value, str) else navigation(value)


def test_every_page_is_in_the_navigation_once() -> None:
    site = tomllib.loads((ROOT / "zensical.toml").read_text("utf-8"))["project"]
    assert sorted(navigation(site["nav"])) == sorted(PAGES)


def test_the_index_leads_to_every_page() -> None:
    links = re.findall(r"\]\((\w[\w-]*\.md)", (DOCS / "README.md").read_text("utf-8"))
    assert set(links) == PAGES - {"README.md"}


def test_links_and_pictures_of_the_readme_exist() -> None:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", (ROOT / "README.md").read_text("utf-8"))
    assert [link for link in links if "://" not in link and not (ROOT / link).exists()] == []


def test_pictures_of_the_pages_exist_and_none_is_left_over() -> None:
    """Links between pages and to their headings are checked by the site's own build."""
    shown = {
        name for page in DOCS.glob("*.md") for name in re.findall(r"\]\(images/([\w.-]+)", page.read_text("utf-8"))
    }
    assert shown == {file.name for file in (DOCS / "images").iterdir()}


def test_rows_of_tables_have_the_cells_of_their_head() -> None:
    """A line break or a bar inside a cell would tear its table."""
    torn = []
    for page in DOCS.glob("*.md"):
        cells = 0
        for line in page.read_text("utf-8").splitlines():
            bars = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
            if cells and bars and bars != cells:
                torn.append(f"{page.name}: {line[:60]}")
            cells = bars
    assert torn == []
    assert not re.search(r"^[^|\n]+\n\|", (DOCS / "settings.md").read_text("utf-8"), re.MULTILINE)


def test_the_api_page_is_current() -> None:
    spec = importlib.util.spec_from_file_location("api_reference", ROOT / "scripts" / "api_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.reference() == (DOCS / "api.md").read_text("utf-8"), "call make docs"


def test_metrics_that_the_page_names_are_written() -> None:
    written = {*aggregate([], []), *(f"update/{name}" for name in (*UPDATE_MEASURES, "skipped"))}
    source = "".join(file.read_text("utf-8") for file in (ROOT / "src" / "mempo").rglob("*.py"))
    for cell in re.findall(r"^\| (`.*?) \|", METRICS, re.MULTILINE):
        for name in re.findall(r"`([a-z_]+(?:/[\w/<>]+)?)`", cell):
            fixed = re.split(r"<|/turn_", name)[0]
            assert fixed in written or f'"{fixed}' in source, name


def test_every_curve_of_the_viewer_is_explained() -> None:
    for chart in (chart for charts in CHARTS.values() for chart in charts if chart.stage == "rl"):
        family = chart.metric.partition("/")[0]  # such as `stop/<reason>`
        assert f"`{chart.metric}`" in METRICS or f"`{family}/<" in METRICS, chart.metric


def test_every_check_of_diagnose_is_explained() -> None:
    page = (DOCS / "diagnose.md").read_text("utf-8")
    rows = re.findall(r"^\| ([^|]+?) \|", page, re.MULTILINE)
    labels = {check.label.partition(",")[0] for check in CHECKS}
    assert labels - {row.partition(",")[0] for row in rows} == set()
