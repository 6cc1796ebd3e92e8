"""`report.html`: one file that needs nothing, is written over nothing, and never stands in the way."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html import unescape
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from mempo.cli.main import app
from mempo.errors import UserError
from mempo.view import report as reporting
from mempo.view.folder import ViewedFolder
from mempo.view.report import reported, telling, versions, write_report
from tests.view.build import facts, make_run, played
from tests.view.test_pages import group


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run", group())


def screen() -> tuple[Console, StringIO]:
    out = StringIO()
    return Console(file=out, width=200), out


def test_the_report_stands_alone(run: Path) -> None:
    write_report([run], run / "report.html")
    text = (run / "report.html").read_text("utf-8")
    assert not re.search(r"""(src|href)=["'](?!#)""", text)
    policy = unescape(re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1])  # type: ignore[index]
    for element in ("style", "script"):
        inside = re.search(rf"<{element}>(.*?)</{element}>", text, re.DOTALL)[1]  # type: ignore[index]
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{element}-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert "seed 7" in text
    assert f"mempo {versions()['mempo']}" in text


def test_five_rollouts_tell_the_story(run: Path) -> None:
    found = [(told.why, told.row.rollout) for told in telling(ViewedFolder(run))]
    assert found == [
        ("right, with the best note", 0),
        ("wrong although the note was good", 2),
        ("format broken", 1),
        ("the longest note", 3),
    ]  # the fifth failed for infrastructure reasons, which tells nothing of the agent


def test_a_note_that_tells_nothing_at_all_is_a_bad_one(tmp_path: Path) -> None:
    """P(mem) = 0 is a number, and no note is none."""
    useless = [{"turn": 1, "p_mem": 0.0, "r": 0.0, "p_mem_raw": 0.0}]
    rollouts = [
        (played(rollout=0), facts(note_tokens=[9])),
        (played(rollout=1), facts(note_tokens=[9, 9, 40])),
        (played(rollout=2), facts(notes=useless, note_tokens=[])),
        (played(rollout=3), facts(notes=[], note_tokens=[])),
    ]
    found = [(told.why, told.row.rollout) for told in telling(ViewedFolder(make_run(tmp_path / "run", rollouts)))]
    assert ("right although the note was bad", 2) in found
    assert found.index(("the most turns", 3)) > found.index(("right although the note was bad", 2))


def test_one_rollout_is_told_once(tmp_path: Path) -> None:
    lone = make_run(tmp_path / "run", [(played(), facts())])
    assert [told.why for told in telling(ViewedFolder(lone))] == ["right, with the best note"]


def test_only_reports_are_written_over(run: Path) -> None:
    file = run / "report.html"
    file.write_text("<p>mine</p>")
    with pytest.raises(UserError, match="no report that mempo wrote"):
        write_report([run], file)
    assert file.read_text() == "<p>mine</p>"
    file.unlink()
    write_report([run], file)
    write_report([run], file)


def test_without_a_tokenizer_the_numbers_are_still_told(run: Path) -> None:
    (run / "final" / "tokenizer.json").unlink()
    write_report([run], run / "report.html")
    assert "name one with --tokenizer" in (run / "report.html").read_text("utf-8")


def test_the_command_line_and_versions_are_kept(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["x", "train", "quickstart", "data.server=http://user:hunter2@host/"])
    console, out = screen()
    with reported(run, console):
        pass
    record = json.loads((run / "commands.jsonl").read_text())
    assert record["command"].startswith("mempo train quickstart")
    assert "hunter2" not in (run / "commands.jsonl").read_text()
    assert record["versions"] == versions()
    assert "mempo train quickstart" in (run / "report.html").read_text("utf-8")
    assert out.getvalue() == ""


@pytest.mark.parametrize("error", [RuntimeError("a bug"), OSError("full"), MemoryError(), UserError("no")])
def test_a_report_that_fails_fails_nothing(run: Path, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(reporting, "render_file", lambda *_, **__: fails())
    console, out = screen()
    with reported(run, console):
        pass
    assert out.getvalue() == f"note: report.html was not written ({error})\n"
    monkeypatch.setattr(reporting, "append_line", fails)
    with reported(run, console):
        pass
    assert "commands.jsonl was not written" in out.getvalue()


def test_what_stops_the_command_is_passed_on(run: Path) -> None:
    console, _ = screen()
    with pytest.raises(KeyboardInterrupt), reported(run, console):
        raise KeyboardInterrupt
    assert (run / "commands.jsonl").exists()
    assert not (run / "report.html").exists()


def test_a_command_that_was_refused_leaves_nothing(run: Path) -> None:
    console, _ = screen()
    with pytest.raises(UserError), reported(run, console):
        raise UserError("holds a run")
    assert not (run / "commands.jsonl").exists()


def test_on_demand(run: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["view", str(run), "--html", str(tmp_path / "mailed.html")])
    assert done.output == f"the report is in {tmp_path / 'mailed.html'}\n"
    assert "Telling rollouts" in (tmp_path / "mailed.html").read_text("utf-8")
