"""Question files: the forms of public data sets, and one clear line for whatever cannot be read."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mempo.data.errors import QuestionFileError
from mempo.data.filters import where
from mempo.data.questions import load_questions, read_questions
from mempo.data.written import read_written
from mempo.errors import UserError
from mempo.rollout.question import Question, as_gold


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize("line", (Path(__file__).parent / "plain_rows.jsonl").read_text("utf-8").splitlines())
def test_jsonl_forms(tmp_path: Path, line: str) -> None:
    """Each line holds a row and the question that it is."""
    made = json.loads(line)
    expected = Question(made["id"], made["text"], as_gold(made["gold"]), meta=made["meta"])
    assert load_questions(write(tmp_path / "q.jsonl", made["row"])) == [expected]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("['Paris', 'City of Light']", ["Paris", "City of Light"]),
        ("['Paris' 'City of Light']", ["Paris", "City of Light"]),  # as NumPy prints it; Python would join the two
        ("['Paris'\n 'Lyon']", ["Paris", "Lyon"]),
        ("[['a' 'b'] ['c']]", [["a", "b"], ["c"]]),
        ('["Rock \'n\' Roll", "it\'s"]', ["Rock 'n' Roll", "it's"]),
        ("('Paris', 'Lyon')", ["Paris", "Lyon"]),
        ("[]", []),
        ("[1997]", ["1997"]),
        ("{'target': ['Paris']}", {"target": ["Paris"]}),
        ("[sic]", "[sic]"),
        ("[[Paris]]", "[[Paris]]"),
        ('"Heroes"', '"Heroes"'),
        ("(I Can't Get No) Satisfaction", "(I Can't Get No) Satisfaction"),
        ("('Til Tuesday)", "('Til Tuesday)"),
        (["['a']"], ["['a']"]),
        (None, None),
    ],
)
def test_lists_written_out_as_text(text: Any, found: Any) -> None:
    assert read_written(text) == found


@pytest.mark.parametrize(
    "text", ["['Paris'", "['a'] ['b']", "array(['Paris'], dtype=object)", "{'target': ['A' 'B']}", "['a', f()]"]
)
def test_a_row_is_refused_when_its_list_cannot_be_read(tmp_path: Path, text: str) -> None:
    path = write(tmp_path / "q.jsonl", {"question": "Q?", "answer": "A"}, {"question": "Q?", "answer": text})
    with pytest.raises(QuestionFileError, match="line 2: the answer looks like a list written as text"):
        load_questions(path)


def test_a_written_list_of_numbers_may_be_a_range(tmp_path: Path) -> None:
    with pytest.raises(QuestionFileError, match=r"line 1: the answer '\[0, 1\]' may be one \(a range\) or several"):
        load_questions(write(tmp_path / "q.jsonl", {"question": "Q?", "answer": "[0, 1]"}))


def test_a_ground_truth_that_parquet_holds_as_text(tmp_path: Path) -> None:
    rows = [{"question": "Q?", "ground_truth": '{"target": ["Paris"]}'}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "q.parquet")
    assert load_questions(tmp_path / "q.parquet") == [Question("0", "Q?", ("Paris",))]


HOTPOT = {
    "_id": "5a8b",
    "question": "Q?",
    "answer": "Paris",
    "type": "bridge",
    "level": "hard",
    "supporting_facts": [["T", 0]],
    "context": [["T", ["S."]]],
}


@pytest.mark.parametrize("opening", ["", "\ufeff", " \n"])
def test_json_array(tmp_path: Path, opening: str) -> None:
    path = tmp_path / "hotpot.json"
    two_wiki = {**HOTPOT, "_id": "b", "evidences": [["a", "b", "c"]]}
    path.write_text(opening + json.dumps([HOTPOT, two_wiki], indent=1), encoding="utf-8")
    first, second = load_questions(path)
    assert first == Question("5a8b", "Q?", "Paris", meta={"type": "bridge", "level": "hard", "documents": [["T"]]})
    assert second.id == "b"


def parquet(path: Path, *rows: dict[str, Any]) -> Path:
    pq.write_table(pa.Table.from_pylist(list(rows)), path)
    return path


def prompt(text: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": "Question: not this"}, {"role": "user", "content": text}]


def test_search_r1_parquet(tmp_path: Path) -> None:
    rows = [
        {
            "data_source": source,
            "prompt": prompt(
                "Answer the given question. <answer> Beijing </answer>. Question: who asked Question: x?\n"
            ),
            "ability": "fact-reasoning",
            "reward_model": {"style": "rule", "ground_truth": {"target": ["A", "B"]}},
            "extra_info": {"split": "train", "index": 0},
            "metadata": {"context": "long"},
        }
        for source in ("nq", "hotpotqa")
    ]
    one, two = load_questions(parquet(tmp_path / "train.parquet", *rows))
    assert one == Question(
        "nq/0", "who asked Question: x?", ("A", "B"), meta={"data_source": "nq", "ability": "fact-reasoning"}
    )
    assert two.id == "hotpotqa/0", "merged sets number their rows alike"


def test_question_column_comes_first(tmp_path: Path) -> None:
    base = {"reward_model": {"ground_truth": {"target": ["A"]}}, "prompt": prompt("Question: from the prompt")}
    path = tmp_path / "q.parquet"
    [question] = load_questions(parquet(path, {**base, "id": "train_0", "question": "from the column"}))
    assert (question.id, question.text) == ("train_0", "from the column")
    [question] = load_questions(parquet(path, {**base, "extra_info": {"index": 4, "question": "from extra_info"}}))
    assert (question.id, question.text) == ("4", "from extra_info")
    [question] = load_questions(parquet(path, {**base, "prompt": prompt("no marker here?")}))
    assert question.text == "no marker here?"


def test_mem1_parquet(tmp_path: Path) -> None:
    row = {
        "data_source": "nq",
        "prompt": [{"role": "user", "content": "Use memory. Answer the following questions: Q1?; Q2?; Q3?\n"}],
        "reward_model": {"style": "rule", "ground_truth": {"target": [["A"], ["B", "b"], ["C"]]}},
        "extra_info": {"split": "train", "indices": [0, 1, 2]},
    }
    [question] = load_questions(parquet(tmp_path / "m.parquet", row))
    assert question.text == "Q1?; Q2?; Q3?"
    assert question.gold == (("A",), ("B", "b"), ("C",))
    row["reward_model"] = {"style": "rule", "ground_truth": {"target": "A <|answer_split|>B"}}
    [question] = load_questions(parquet(tmp_path / "m.parquet", row))
    assert question.gold == (("A",), ("B",))
    row["reward_model"] = {"style": "rule", "ground_truth": "A"}
    [question] = load_questions(parquet(tmp_path / "m.parquet", row))
    assert question.gold == "A"


def test_plain_parquet(tmp_path: Path) -> None:
    rows = [{"question": f"Q{i}?", "answer": [f"A{i}"]} for i in range(3000)]
    path = parquet(tmp_path / "q.parquet", *rows)
    questions = load_questions(path)
    assert len(questions) == 3000
    assert questions[2999] == Question("2999", "Q2999?", ("A2999",))
    assert load_questions(path, limit=2) == questions[:2]


def test_gzip_blank_lines_and_limit(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_bytes(
        gzip.compress(b'\xef\xbb\xbf\n{"question": "Q?", "answer": "A"}\r\n\n{"question": "R?", "answer": "B"}\nbroken')
    )
    assert [(q.id, q.text) for q in load_questions(path, limit=2)] == [("0", "Q?"), ("1", "R?")]
    with pytest.raises(QuestionFileError, match="line 5: not JSON"):
        load_questions(path)
    with pytest.raises(QuestionFileError, match="limit=0"):
        load_questions(path, limit=0)


GOOD = b'{"question": "Q?", "answer": "A"}\n'


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (GOOD + b"{", "line 2: not JSON"),
        (GOOD + b'"text"\n', "line 2: expected one JSON object per line, got a string"),
        (GOOD + b'\n{"answer": "A"}', 'line 3: has no "question"; it has "answer"'),
        (b'{"_id": "q1", "text": "Q?"}', 'line 1: has no "question"; it has "_id", "text"'),
        (b'{"question": "Q?"}', 'line 1: has no answer (looked for "golden_answers", "answer"'),
        (b'{"question": "  ", "answer": "A"}', "line 1: the question is blank"),
        (b'{"question": ["Q?"], "answer": "A"}', 'line 1: "question" must be a string, not a list'),
        (b'{"question": "Q?", "answer": ""}', "line 1: unusable answer"),
        (b'{"question": "Q?", "answer": []}', "line 1: unusable answer"),
        (b'{"question": "Q?", "answer": {"a": 1}}', "line 1: unusable answer"),
        (b'{"question": "Q?", "answer": ["A", ["B"]]}', "line 1: unusable answer"),
        (b'{"question": "Q?", "answer": [[["A"]]]}', "line 1: unusable answer"),
        (b'{"question": "Q?", "answer": "A", "id": 1.5}', 'line 1: "id" must be a string or an integer, not a number'),
        (
            b'{"question": "Q?", "answer": "A", "id": false}',
            'line 1: "id" must be a string or an integer, not a boolean',
        ),
        (b'{"question": "Q?", "answer": ' + b"[" * 900 + b"]" * 900 + b"}", "line 1: "),
        (b'{"question": "Q?", "answer": ' + b"[" * 90000 + b"}", "line 1: not usable JSON"),
        (
            b'{"question": "Q?", "answer": "A", "prompt": 1, "reward_model": {}}',
            'line 1: "reward_model" has no ground_truth',
        ),
        (b'{"prompt": [{"role": "user"}], "answer": "A"}', 'line 1: "prompt" must be a list of messages'),
        (b'{"id": 1, "question": "Q?", "answer": "A"}\n' * 2, "id '1' is in line 1 and in line 2"),
        (b'{"id": "1", "question": "Q?", "answer": "A"}\n' + GOOD, "id '1' is in line 1 and in line 2"),
        (b"\xff\xfe{", "line 1: not UTF-8"),
        (b"", "holds no questions (0 bytes)"),
        (b"\n\n", "holds no questions"),
        (b"[]", "holds no questions"),
        (b"[\n{},", "line 2: not JSON"),
        (b"[" + GOOD + b", 5]", "row 1: expected an object, got a number"),
        (b"[" * 90000, "not usable JSON"),
        (b"[\xff]", "not usable JSON"),
        (b"PAR1 and no more", "damaged parquet file"),
        (gzip.compress(GOOD * 100, mtime=0)[:-12], "damaged gzip file"),
    ],
)
def test_broken_files(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "q.jsonl"
    path.write_bytes(content)
    with pytest.raises(QuestionFileError) as caught:
        load_questions(path)
    assert said in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, UserError)


def test_broken_parquet_row(tmp_path: Path) -> None:
    path = parquet(tmp_path / "q.parquet", {"question": "Q?", "answer": "A"}, {"question": "R?", "answer": None})
    with pytest.raises(QuestionFileError, match="row 1: has no answer"):
        load_questions(path)


def test_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(QuestionFileError, match="no such file"):
        load_questions(tmp_path / "nowhere.jsonl")
    with pytest.raises(QuestionFileError, match="is a folder"):
        load_questions(tmp_path)


def test_a_meta_object_and_a_probe_are_kept(tmp_path: Path) -> None:
    plan = {"queries": [["capital of France"]], "finds": [["Paris"]]}
    file = tmp_path / "q.jsonl"
    file.write_text(json.dumps({"question": "Q?", "answer": "Paris", "probe": "north", "meta": plan}) + "\n", "utf-8")
    question = load_questions(file)[0]
    assert question.probe == "north"
    assert question.meta["queries"] == [["capital of France"]]
    assert question.meta["finds"] == [["Paris"]]


def test_a_blank_probe_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "q.jsonl"
    file.write_text(json.dumps({"question": "Q?", "answer": "Paris", "probe": " "}) + "\n", "utf-8")
    with pytest.raises(QuestionFileError, match=r"line 1.*probe"):
        load_questions(file)


# --- forms that nest -----------------------------------------------------------------------------------------------


def test_fanoutqa_wants_all_members_of_an_answer(tmp_path: Path) -> None:
    row = {"id": "f", "question": "Q?", "decomposition": [{"id": "g", "question": "R?", "answer": "x"}]}
    answers: list[Any] = ["Paris", ["Paris", "Rome"], {"France": "Paris", "Founded": 1200, "EU": True}, 2500, True]
    path = tmp_path / "fanout.json"
    path.write_text(json.dumps([{**row, "id": str(i), "answer": answer} for i, answer in enumerate(answers)]), "utf-8")
    golds = [question.gold for question in load_questions(path)]
    assert golds == [
        ("Paris",),
        (("Paris",), ("Rome",)),
        (
            ("Paris", "France: Paris"),
            ("1200", "1,200", "Founded: 1200", "Founded: 1,200"),
            ("yes", "true", "EU: yes", "EU: true"),
        ),
        ("2500", "2,500"),
        ("yes", "true"),
    ]
    path.write_text(json.dumps([{**row, "answer": {"a": None}}]), "utf-8")
    with pytest.raises(QuestionFileError, match="row 0: the answer holds null"):
        load_questions(path)


def test_nested_hotpotqa(tmp_path: Path) -> None:
    row = {
        "id": "5a8b",
        "question": "Q?",
        "answer": "Paris",
        "type": "bridge",
        "level": "hard",
        "supporting_facts": {"title": ["T"], "sent_id": [0]},
        "context": {"title": ["T"], "sentences": [["S."]]},
    }
    expected = Question("5a8b", "Q?", "Paris", meta={"type": "bridge", "level": "hard", "documents": [["T"]]})
    assert load_questions(parquet(tmp_path / "h.parquet", row)) == [expected]
    assert load_questions(write(tmp_path / "h.jsonl", row)) == [expected]


TWO_WIKI = {**HOTPOT, "_id": "w", "evidences": [["Film X", "country", "France"]], "entity_ids": "Q1_Q142"}
TWO_WIKI |= {"answer": "France", "type": "compositional", "answer_id": "Q142", "evidences_id": [["Q1", "P17", "Q142"]]}
ALIASES = [
    {"Q_id": "Q142", "aliases": ["French Republic", "France"], "demonyms": ["French"]},
    {"Q_id": "Q31", "aliases": ["Kingdom of Belgium"], "demonyms": []},
]


@pytest.mark.parametrize("name", ["id_aliases.json", "id_aliases.jsonl", "id_aliases.json.gz"])
@pytest.mark.parametrize("as_array", [False, True])
def test_2wiki_takes_the_aliases_beside_it(tmp_path: Path, name: str, as_array: bool) -> None:
    rows = [TWO_WIKI, {**TWO_WIKI, "_id": "v", "answer_id": "Q5"}, {**TWO_WIKI, "_id": "u", "answer_id": None}]
    (tmp_path / "dev.json").write_text(json.dumps(rows), "utf-8")
    text = json.dumps(ALIASES) if as_array else "".join(json.dumps(row) + "\n" for row in ALIASES)
    (tmp_path / name).write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    first, second, third = load_questions(tmp_path / "dev.json")
    assert first.gold == ("France", "French Republic", "French")
    assert first.meta["type"] == "compositional"
    assert (second.gold, third.gold) == ("France", "France")
    again = load_questions(parquet(tmp_path / "dev.parquet", {**TWO_WIKI, "supporting_facts": [], "context": []}))
    assert again[0].gold == first.gold


def test_a_broken_file_of_aliases_is_named(tmp_path: Path) -> None:
    (tmp_path / "dev.json").write_text(json.dumps([TWO_WIKI]), "utf-8")
    for text, said in (("{}\n{half", "line 2: not JSON"), ('{"Q_id": "Q142", "aliases": "x"}', "line 1: 'aliases'")):
        (tmp_path / "id_aliases.json").write_text(text, "utf-8")
        with pytest.raises(QuestionFileError, match=f"id_aliases.json, {said}"):
            load_questions(tmp_path / "dev.json")


def test_verl_parquet_asks_what_extra_info_holds(tmp_path: Path) -> None:
    row = {
        "data_source": "searchR1_nq",
        "prompt": prompt("Answer it. Question: from the prompt"),
        "reward_model": {"style": "rule", "ground_truth": {"target": ["A"]}},
        "extra_info": {"index": 3, "need_tools_kwargs": True, "question": "Q?", "split": "test"},
        "metadata": {"x": "long"},
    }
    [question] = load_questions(parquet(tmp_path / "v.parquet", row))
    assert (question.id, question.text, question.gold) == ("searchR1_nq/3", "Q?", ("A",))


@pytest.mark.parametrize("answer", ["A<|answer_split|> B ", ["A<|answer_split|> B "]])
def test_answers_split_in_one_string(tmp_path: Path, answer: object) -> None:
    [question] = load_questions(write(tmp_path / "s.jsonl", {"question": "Q?; R?", "answer": answer}))
    assert question.gold == (("A",), ("B",))


# --- broken rows ---------------------------------------------------------------------------------------------------


def test_broken_rows_are_left_out_and_named(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    good = {"question": "Q?", "answer": "A"}
    rows = [{"id": "a", **good}, "broken", "", {"question": "?"}, {"id": "a", **good}, {"id": "b", **good}]
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows), "utf-8")
    questions, skipped, remarks = read_questions(path, skip_bad=True)
    assert [question.id for question in questions] == ["a", "b"]
    for part, text in zip(("line 2", "line 4", "line 1 and in line 5"), skipped, strict=True):
        assert part in text
    assert remarks == [f"3 broken rows of {path} are left out; the first: {skipped[0]}"]
    with pytest.raises(QuestionFileError, match="line 2"):
        read_questions(path)
    with pytest.raises(QuestionFileError, match="none of the 1 rows can be used"):
        read_questions(write(tmp_path / "bad.jsonl", {"x": 1}), skip_bad=True)


def test_filters_by_what_rows_say(tmp_path: Path) -> None:
    rows = [
        {"id": str(i), "question": "Q?", "answer": "A", "level": level, "hops": i, "even": i % 2 == 0}
        for i, level in enumerate(["easy", "hard", "hard", "medium"])
    ]
    questions = load_questions(write(tmp_path / "q.jsonl", *rows))
    assert [q.id for q in where(questions, {"level": "hard"})] == ["1", "2"]
    assert [q.id for q in where(questions, {"level": ["easy", "hard"], "even": True})] == ["0", "2"]
    assert [q.id for q in where(questions, {"hops": 1})] == ["1"]  # not the True of another key
    assert where(questions, {}) == questions
    with pytest.raises(UserError, match="no question has 'levl'; did you mean 'level'"):
        where(questions, {"levl": "hard"})
    with pytest.raises(UserError, match="no question is left with level='x'; values of level: easy, hard, medium"):
        where(questions, {"level": "x"})
