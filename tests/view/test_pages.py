"""What the pages say of a run: the same as its files."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from mempo.errors import UserError
from mempo.storage.append import RolloutAppender
from mempo.view.app import create_app
from mempo.view.curves import curves
from mempo.view.folder import ViewedFolder, open_folders
from mempo.view.rollouts import RolloutFile
from mempo.view.turns import advantage_class, turn_views
from tests.view.build import GOLD, QUESTION, TEXTS, TOKENIZER, facts, make_run, played

LOST = ("<think>I guess</think><answer>Lyon; Kyoto</answer>",)
COPIES = (TEXTS[0], TEXTS[1], TEXTS[1], "<mem>short</mem><think>so</think><answer>Lyon</answer>")


def group() -> list[tuple[Any, dict[str, Any]]]:
    """Of one question: right with a good note, wrong without a note, wrong with a good note and a copied one, right
    with a bad note, failed."""
    bad_note = [{"turn": 1, "p_mem": 0.1, "r": 0.1, "p_mem_raw": 0.1}]
    return [
        (played(rollout=0), facts(advantage=0.25)),
        (played(LOST, rollout=1), facts(em=0.0, advantage=-1.0, notes=[], note_tokens=[], violations={"order": 1})),
        (played(COPIES, ("a", "b", "c"), rollout=2), facts(em=0.0, advantage=-0.5, note_tokens=[9, 9, 40])),
        (played(rollout=3), facts(advantage=1.5, notes=bad_note)),
        (played(rollout=4), facts(em=None, is_error=True, tool_errors=1, advantage=None)),
    ]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("view") / "run", group())


@pytest.fixture(scope="module")
def client(run: Path) -> TestClient:
    return TestClient(create_app(open_folders([run])), base_url="http://127.0.0.1:80")


def read(client: TestClient, page: str, status: int = 200) -> str:
    """The text of a page, without its elements."""
    answer = client.get(page)
    assert answer.status_code == status
    return " ".join(unescape(re.sub(r"<[^>]*>", "", answer.text)).split())


def test_a_turn_is_what_the_policy_saw_and_wrote() -> None:
    trajectory = played()
    advantages = {1: [0.5] * len(trajectory.turns[1].generated_ids)}
    first, second, third = turn_views(trajectory, facts(), advantages, TOKENIZER)
    assert first.question == TOKENIZER.decode(trajectory.question_ids)
    assert QUESTION in first.question
    assert (first.carried, first.note) == ("", ())
    assert second.question + second.carried == TOKENIZER.decode(trajectory.turns[1].prompt_ids)
    assert third.carried.startswith("<mem>France: Paris</mem><search>capital of Japan</search>")
    assert third.prompt_tokens == len(trajectory.turns[2].prompt_ids) < third.history_tokens
    assert "".join(text for kind, text in third.note if kind != "del") == "France: Paris; Japan: Tokyo"
    assert [text for kind, text in third.note if kind == "ins"] == ["; Japan: Tokyo"]
    assert [text for kind, text in second.observation if kind == "gold"] == ["Tokyo", "東京"]
    assert (third.thought, third.action_kind, third.action) == ("done", "answer", "Paris; Tokyo")
    shown = {name: value for name, value, _ in second.numbers}
    assert shown == {
        "P(mem)": "0.250",
        "P(baseline)": "0.500",
        "r": "-0.250",
        "note's advantage": "-1.000",
        "outcome's advantage": "+0.500",
    }


def test_tokens_tell_their_numbers_and_which_are_trained() -> None:
    trajectory = played()
    turn = trajectory.turns[1]
    view = turn_views(trajectory, facts(), {1: [0.5] * len(turn.generated_ids)}, TOKENIZER)[1]
    assert "".join(token.text for token in view.tokens) == TEXTS[1]
    assert view.tokens[0].told == f"advantage +0.5000 · log-prob -0.5000, p 0.6065 · id {turn.generated_ids[0]} · note"
    assert {"note", "p4", "l2"} == set(view.tokens[0].classes.split())
    untrained = turn_views(trajectory, facts(), {}, TOKENIZER)[1].tokens[0]
    assert "untrained" in untrained.classes
    assert "not trained on" in untrained.told


def test_colors_are_fourths_of_the_largest_advantage() -> None:
    values = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0, -0.3, -1.0)
    assert [advantage_class(v, 1.0) for v in values] == ["zero", "p1", "p2", "p3", "p4", "p4", "n2", "n4"]
    assert advantage_class(1.0, 0.0) == "zero"


def test_what_was_cut_is_shown() -> None:
    passage = " ".join(f"word{n}" for n in range(60))
    whole = played(passages=(passage, "b"))
    limit = len(whole.turns[1].prompt_ids) + 20
    cut = played(passages=(passage, "b"), max_context_tokens=limit, min_turn_tokens=40)
    view = turn_views(cut, facts(), {}, TOKENIZER)[1]
    lost = len(whole.turns[1].prompt_ids) - len(cut.turns[1].prompt_ids)
    assert lost > 0
    assert view.cut_tokens >= lost  # the mark of the cut takes room too
    assert passage.endswith(view.cut[0].strip().splitlines()[0])
    assert turn_views(whole, facts(), {}, TOKENIZER)[1].cut_tokens == 0


def test_the_group_stands_side_by_side_the_best_advantage_first(client: TestClient) -> None:
    text = read(client, "/run/0/step-1/question/0")
    assert re.findall(r"rollout (\d) ", text) == ["3", "0", "2", "1", "4"]
    assert "gold: Paris; Tokyo / 東京" in text


def test_a_list_of_questions_links_every_rollout(client: TestClient) -> None:
    page = client.get("/run/0/step-1/").text
    assert re.findall(r'href="/run/0/step-1/rollout/(\d)"', page) == ["0", "1", "2", "3", "4"]
    assert "2 of 4 right" in read(client, "/run/0/step-1/")


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("filter=wrong-good-note", [2]),
        ("filter=right-bad-note", [3]),
        ("filter=right", [0, 3]),
        ("filter=wrong", [1, 2]),
        ("filter=tool-error", [4]),
        ("filter=failed", [4]),
        ("filter=format-order", [1]),
        ("filter=format-clean", []),
        ("filter=longest-notes", [2, 0, 3, 4]),
        ("filter=copies", [2]),
        ("text=i%20GUESS", [1]),
        ("text=parisian", [0, 3, 4]),
        ("text=capital%20of%20japan&filter=wrong", [1, 2]),
        ("text=nowhere", []),
    ],
)
def test_filters_and_search(client: TestClient, query: str, found: list[int]) -> None:
    page = client.get(f"/run/0/step-1/?{query}").text
    assert [int(n) for n in re.findall(r'<li><a href="/run/0/step-1/rollout/(\d)"', page)] == found


def test_pages_of_a_long_list(tmp_path: Path) -> None:
    trajectory = played(LOST)
    lines = [(trajectory, facts(question=f"question {n}")) for n in range(120)]
    run = make_run(tmp_path / "run", [(t, {**f, "rollout": 0}) for t, f in lines])
    _rename_questions(run)
    client = TestClient(create_app(open_folders([run])), base_url="http://localhost")
    second = client.get("/run/0/step-1/?start=50").text
    assert re.findall(r">question (\d+)<", second)[::49] == ["50", "99"]
    assert 'rel="prev"' in second
    assert 'rel="next"' in second
    assert 'rel="next"' not in client.get("/run/0/step-1/?start=100").text


def _rename_questions(run: Path) -> None:
    file = run / "rollouts" / "step-1.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps({**line, "question_id": f"q{n}"}) + "\n" for n, line in enumerate(lines)))


NO_PAGES = (
    *("/run/0/step-1/rollout/99", "/run/0/step-1/question/1", "/run/0/step-2/", "/run/1/step-1/", "/run/x/config"),
    *(f"/run/0/step-1/rollout/{'9' * 80}", "/run/0/step-1/rollout/x", "/run/0/step-1/rollout/-1"),
    "/run/0/step-1/?start=x",
)


@pytest.mark.parametrize("page", NO_PAGES)
def test_an_address_of_nothing_is_a_page_too(client: TestClient, page: str) -> None:
    assert "no such page" in read(client, page, 404)


@pytest.mark.parametrize("filtered", ["", "filter=right&", "text=Paris&"])
def test_a_page_behind_all_pages_is_empty(client: TestClient, filtered: str) -> None:
    assert client.get(f"/run/0/step-1/?{filtered}start={10**30}").status_code == 200


@pytest.mark.parametrize("turn", [{}, [], None, "1"])
def test_a_note_of_no_turn_is_not_shown(turn: Any) -> None:
    views = turn_views(played(), facts(notes=[{"turn": turn, "p_mem": 0.5}]), {}, TOKENIZER)
    assert all(name != "P(mem)" for view in views for name, _, _ in view.numbers)


def test_damage_is_said_and_does_not_spread(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", group())
    tokens = run / "rollouts" / "step-1.tokens"
    tokens.write_bytes(tokens.read_bytes()[:400])
    client = TestClient(create_app(open_folders([run])), base_url="http://localhost")
    assert "2 of 4 right" in read(client, "/run/0/step-1/")
    assert "step-1.tokens is damaged" in read(client, "/run/0/step-1/rollout/3", 500)
    (run / "metrics.jsonl").write_text("{}\n")
    assert "metrics.jsonl is damaged" in read(client, "/", 500)


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no run and no evaluation"):
        open_folders([tmp_path])


def test_a_file_that_grows_is_read_on(tmp_path: Path) -> None:
    path = tmp_path / "memory.jsonl"
    with RolloutAppender(path) as out:
        out.append(played(LOST, rollout=0), facts(em=0.0))
        file = RolloutFile(path)
        assert [row.right for row in file.rows()] == [False]
        out.append(played(rollout=1), facts())
        assert [row.right for row in file.rows()] == [False, True]
        out.append(played(rollout=0), facts())  # made again: the later line counts
        assert [(row.rollout, row.number, row.right) for row in file.rows()] == [(0, 2, True), (1, 1, True)]
    record = {"question_id": "q0", "rollout": 1, "answer": "Paris; Tokyo", "notes": [{"turn": 1, "p_mem": 0.9}]}
    path.with_suffix(".notes.jsonl").write_text(json.dumps(record) + "\n")
    assert file.rows()[1].p_note == 0.9
    assert file.record(1)["notes"] == record["notes"]
    with path.open("a") as torn:
        torn.write('{"question_id": "q9", "roll')
    assert len(file.rows()) == 2


def test_curves_are_those_of_the_metrics(tmp_path: Path) -> None:
    found = curves(open_folders([make_run(tmp_path / "short")]))
    charts = {chart["title"]: chart for section in found["sections"] for chart in section["charts"]}
    assert charts["score"]["series"] == [{"run": 0, "x": [1, 2], "y": [0.5, 1.0]}]
    assert charts["rollouts that answered"]["series"][0]["y"] == [0.75, 0.75]
    assert "SFT loss" not in charts


@pytest.mark.parametrize(
    ("steps", "first", "count"),
    [(2999, [1, 2], 2998), (4000, [1, 3], 2000), (4001, [2, 4], 2000), (7000, [3, 8], 1750)],
)
def test_a_long_curve_is_thinned_and_keeps_the_newest_step(
    tmp_path: Path, steps: int, first: list[int], count: int
) -> None:
    many = [{"stage": "rl", "step": n, "score": None if n == 7 else n} for n in range(1, steps + 1)]
    long = make_run(tmp_path / "long", metrics=many)
    xs = curves([ViewedFolder(long)])["sections"][0]["charts"][0]["series"][0]["x"]
    assert (xs[:2], xs[-1], len(xs)) == (first, steps, count)


def test_news_are_told_by_version(client: TestClient, run: Path) -> None:
    version = client.get("/data.json").json()["version"]
    assert client.get("/data.json", params={"version": version}).status_code == 204
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"stage": "rl", "step": 3, "score": 1.0}) + "\n")
    assert client.get("/data.json", params={"version": version}).json()["sections"][0]["charts"][0]["series"][0][
        "x"
    ] == [1, 2, 3]


def test_evaluations_in_a_run_come_along(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    evaluation = make_run(run / "evaluations" / "abc")
    (evaluation / "identity.json").write_text(json.dumps({"policy": "/gone"}))
    (evaluation / "rollouts" / "step-1.jsonl").rename(evaluation / "rollouts" / "a1.jsonl")
    (evaluation / "rollouts" / "step-1.tokens").rename(evaluation / "rollouts" / "a1.tokens")
    (evaluation / "agents.json").write_text(json.dumps({"a1": {"name": "window(1)"}}))
    metrics = {"window(1)": {"2": {"questions": 3.0, "scored_questions": 2.0, "em": 0.5}}}
    (evaluation / "evaluation.json").write_text(json.dumps(metrics))
    folders = open_folders([run])
    assert [folder.label for folder in folders] == ["run", "run/evaluations/abc"]
    assert folders[1].table()[0][:4] == ("2", "2 of 3", "window(1)", "50.0%")
    client = TestClient(create_app(folders), base_url="http://localhost")
    assert "rollouts: window(1)" in read(client, "/")
    assert "France: Paris; Japan: Tokyo" in read(client, "/run/1/a1/rollout/0")


def test_gold_of_every_shape(client: TestClient) -> None:
    from mempo.view.pages import gold

    assert gold({"gold": GOLD}) == "Paris; Tokyo / 東京"
    assert gold({"gold": "one"}) == "one"
    assert gold({"gold": 3}) == gold({}) == gold({"gold": [[1]]}) == "–"
