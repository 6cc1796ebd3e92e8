"""Question files of the data sets people have, in the shapes their publishers give them."""

from __future__ import annotations

import base64
import csv
import gzip
import io
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mempo.data.answers import as_texts
from mempo.data.errors import QuestionFileError
from mempo.data.forms import COLUMNS, plain_row
from mempo.data.plans import plan_meta
from mempo.data.questions import load_questions, read_questions
from mempo.data.rows import question_of
from mempo.rollout.question import Question, as_gold

SQUAD = {
    "version": "v2.0",
    "data": [
        {
            "title": "Normans",
            "paragraphs": [
                {
                    "context": "The Normans …",
                    "qas": [
                        {
                            "id": "s1",
                            "question": "Where is Normandy?",
                            "answers": [{"text": "France", "answer_start": 1}, {"text": "France", "answer_start": 9}],
                            "is_impossible": False,
                        },
                        {
                            "id": "s2",
                            "question": "Who ruled Nowhere?",
                            "answers": [],
                            "plausible_answers": [{"text": "Rollo", "answer_start": 3}],
                            "is_impossible": True,
                        },
                    ],
                }
            ],
        }
    ],
}
SQUAD_1 = json.loads(json.dumps(SQUAD).replace(', "is_impossible": false', "").replace('"s2"', '"s3"'))
ROWS = [
    json.loads(line) for line in (Path(__file__).parent / "rows_of_data_sets.jsonl").read_text("utf-8").splitlines()
]
"""A row of each data set, the question's id, text and gold, and the name under which the form is said."""


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def parquet(path: Path, *rows: dict[str, Any]) -> Path:
    pq.write_table(pa.Table.from_pylist(list(rows)), path)
    return path


@pytest.mark.parametrize("made", ROWS)
@pytest.mark.parametrize("kind", ["jsonl", "json", "object", "parquet"])
def test_a_form_is_told_by_its_keys(tmp_path: Path, kind: str, made: dict[str, Any]) -> None:
    row = made["row"]
    if kind == "parquet":
        path = parquet(tmp_path / "q.parquet", row)
    else:
        document = row if kind == "jsonl" else [row] if kind == "json" else {"Data": [row], "Version": 1.0}
        path = write(tmp_path / "q.json", json.dumps(document, indent=None if kind == "jsonl" else 1))
    [question], _, remarks = read_questions(path)
    assert (question.id, question.text, question.gold) == (made["id"], made["text"], as_gold(made["gold"]))
    assert remarks == ([f"{path} is read as {made['form']}"] if made["form"] else [])


def test_what_a_row_says_besides_is_kept_for_filters(tmp_path: Path) -> None:
    path = write(tmp_path / "gaia.jsonl", json.dumps(next(made["row"] for made in ROWS if made["form"] == "GAIA")))
    assert load_questions(path)[0].meta == {"Level": 2, "file_name": "x.png"}
    assert len(read_questions(path, where={"Level": 2}).questions) == 1


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("squad", [SQUAD, SQUAD_1])
def test_squad_nests_its_questions_and_leaves_the_impossible_out(tmp_path: Path, indent: Any, squad: Any) -> None:
    path = write(tmp_path / "dev.json", json.dumps(squad, indent=indent))
    questions, _, remarks = read_questions(path)
    assert [(q.id, q.text, q.gold, q.meta["title"]) for q in questions] == [
        ("s1", "Where is Normandy?", ("France",), "Normans")
    ]
    assert f"1 question of {path} is unanswerable" in remarks[1]
    both = read_questions(path, where={"answerable": [True, False]}).questions
    assert [q.gold for q in both] == [("France",), None]


def test_squad_of_the_hub_says_impossible_with_no_text(tmp_path: Path) -> None:
    rows = [
        {"id": str(i), "question": "Q?", "answers": {"text": t, "answer_start": []}} for i, t in enumerate([["A"], []])
    ]
    assert [q.id for q in load_questions(parquet(tmp_path / "s.parquet", *rows))] == ["0"]


def test_the_questions_of_a_passage_are_rows(tmp_path: Path) -> None:
    lines = [
        {"header": {"dataset": "NaturalQuestions", "split": "dev"}},
        {"context": "C", "qas": [{"qid": "a", "question": "Q?", "answers": ["A"]}, {"qid": "b", "question": "R?"}]},
    ]
    path = write(tmp_path / "mrqa.jsonl", "\n".join(map(json.dumps, lines)))
    with pytest.raises(QuestionFileError, match="line 2, question 2: has no answer"):
        load_questions(path)
    assert [q.id for q in read_questions(path, skip_bad=True).questions] == ["a"]


def test_rows_may_stand_under_their_ids(tmp_path: Path) -> None:
    document = {"q1": {"question": "Q?", "answer": "A"}, "q2": {"question": "R?", "answer": "B", "id": "own"}}
    assert [q.id for q in load_questions(write(tmp_path / "q.json", json.dumps(document)))] == ["q1", "own"]


def test_one_object_on_several_lines_may_be_the_only_question(tmp_path: Path) -> None:
    path = write(tmp_path / "q.json", json.dumps({"question": "Q?", "answer": "A"}, indent=2))
    assert load_questions(path) == [Question("0", "Q?", "A")]


# --- unanswerable --------------------------------------------------------------------------------------------------

MUSIQUE = [
    {"id": "2hop__1", "question": "Q?", "answer": "A", "answer_aliases": ["B"], "answerable": True, "paragraphs": [{}]},
    {"id": "2hop__1", "question": "Q?", "answer": "A", "answer_aliases": [], "answerable": False, "paragraphs": [{}]},
]


def test_musique_full_has_every_id_twice(tmp_path: Path) -> None:
    path = write(tmp_path / "musique.jsonl", "\n".join(map(json.dumps, MUSIQUE)))
    for wanted, gold, said in (
        (None, ("A", "B"), f"1 question of {path} is unanswerable by its own account and left out"),
        ({"answerable": True}, ("A", "B"), f"data.where keeps 1 of 2 questions of {path}"),
        ({"answerable": False}, "A", f"data.where keeps 1 of 2 questions of {path}"),
    ):
        [question], _, remarks = read_questions(path, where=wanted)
        assert question.gold == gold
        assert remarks[0].startswith(said)
    with pytest.raises(QuestionFileError, match="ids must be unique"):
        read_questions(path, where={"answerable": [True, False]})
    with pytest.raises(QuestionFileError, match="all 1 are unanswerable"):
        load_questions(write(tmp_path / "none.jsonl", json.dumps(MUSIQUE[1])))


# --- tables --------------------------------------------------------------------------------------------------------

TABLE = [
    {"question": 'Who said, „a\tb; c"?', "answer": "x, y", "answerable": "True", "level": "2"},
    {"question": "On\ntwo lines?", "answer": "12", "answerable": "FALSE", "level": "3"},
    {"question": "Third?", "answer": "z", "answerable": "True", "level": "3"},
]


@pytest.mark.parametrize("delimiter", [",", "\t", ";"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "gzip"])
def test_tables_are_told_by_their_first_line(tmp_path: Path, delimiter: str, encoding: str) -> None:
    out = io.StringIO()
    writer = csv.DictWriter(out, list(TABLE[0]), delimiter=delimiter, lineterminator="\r\n")
    writer.writeheader()
    writer.writerows(TABLE)
    data = gzip.compress(out.getvalue().encode()) if encoding == "gzip" else out.getvalue().encode(encoding)
    path = tmp_path / "questions"  # no name to go by
    path.write_bytes(data)
    assert [(q.id, q.text, q.gold) for q in load_questions(path)] == [
        ("0", TABLE[0]["question"], "x, y"),
        ("2", "Third?", "z"),
    ]
    [question] = read_questions(path, where={"level": 3, "answerable": True}).questions
    assert question.text == "Third?"
    [question] = read_questions(path, where={"answerable": False}).questions
    assert question.text == "On\ntwo lines?"


def test_popqa_and_simpleqa_and_bamboogle_as_tables(tmp_path: Path) -> None:
    popqa = 'id\tquestion\tpossible_answers\n7\tQ?\t"[""a"", ""b, c""]"\n'
    simple = "metadata,problem,answer\n\"{'topic': 'x', 'urls': ['u']}\",\"Q, then?\",A\n"
    assert load_questions(write(tmp_path / "popqa.tsv", popqa)) == [Question("7", "Q?", ("a", "b, c"))]
    [question] = load_questions(write(tmp_path / "simple_qa.csv", simple))
    assert (question.text, question.gold) == ("Q, then?", "A")
    assert load_questions(write(tmp_path / "b.csv", "Question,Answer\nQ?,A\n")) == [Question("0", "Q?", "A")]


def test_a_long_cell_is_no_error(tmp_path: Path) -> None:
    text = f"question,answer,context\nQ?,A,{'x' * 300_000}\n"
    assert load_questions(write(tmp_path / "q.csv", text))[0].gold == "A"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("q.csv", "question,answer\nQ?,A\nR?,B,C\n", "line 3: it has 3 columns, the first line 2"),
        ("q.csv", "question,answer\n,A\n", 'line 2: has no "question"; it has "answer"'),
        ("q.csv", "question,answer\nQ?,\n", "line 2: has no answer"),
        ("q.csv", "text,label\na,b\n", 'no column holds questions; its columns are "text", "label"; known forms: '),
        ("q.tsv", "one column\na\n", 'its columns are "one column"; known forms: '),
        ("q.csv", "question,answer\n", "holds no questions"),
        ("q.csv", "", "holds no questions"),
        ("q.txt", "just text\n", "line 1: not JSON"),
    ],
)
def test_broken_tables_are_one_line(tmp_path: Path, name: str, text: str, said: str) -> None:
    with pytest.raises(QuestionFileError) as caught:
        load_questions(write(tmp_path / name, text))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_table_that_is_not_utf8_says_so(tmp_path: Path) -> None:
    (tmp_path / "q.csv").write_bytes("question,answer\nQué?,A\n".encode("latin-1"))
    with pytest.raises(QuestionFileError, match="not UTF-8"):
        load_questions(tmp_path / "q.csv")


# --- answers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        (42, "42"),
        (1998.0, ("1998", "1998.0")),
        (0.5, "0.5"),
        (True, ("yes", "true")),
        (False, ("no", "false")),
        ([1998, "1998 AD"], ("1998", "1998 AD")),
        ([2.0, True], ("2", "2.0", "yes", "true")),
        ([[1], ["B", 2.5]], (("1",), ("B", "2.5"))),
    ],
)
def test_numbers_and_booleans_are_the_texts_that_say_them(tmp_path: Path, answer: Any, gold: Any) -> None:
    row = {"question": "Q?", "answer": answer}
    assert load_questions(write(tmp_path / "q.jsonl", json.dumps(row)))[0].gold == gold


@pytest.mark.parametrize(
    "array", [np.array(["A", "B"]), np.array(["A", "B"], dtype=object), [np.str_("A"), "B"], ("A", "B")]
)
def test_arrays_of_numpy_are_lists(array: Any) -> None:
    """As rows of a table that pandas read have them."""
    assert question_of(plain_row({"question": "Q?", "answer": array})[1], 0).gold == ("A", "B")
    assert as_texts(np.array([["A"], ["B"]])) == [["A"], ["B"]]
    assert as_texts(np.array([1, 2])) == ["1", "2"]


def test_an_empty_cell_of_pandas_is_no_answer(tmp_path: Path) -> None:
    path = parquet(
        tmp_path / "q.parquet", {"question": "Q?", "answer": float("nan")}, {"question": "R?", "answer": 3.0}
    )
    with pytest.raises(QuestionFileError, match="row 0: has no answer"):
        load_questions(path)
    assert read_questions(path, skip_bad=True).questions[0].gold == ("3", "3.0")


# --- refused -------------------------------------------------------------------------------------------------------


def encrypted(text: str) -> str:
    return base64.b64encode(bytes(byte ^ 0x5A for byte in text.encode())).decode()


@pytest.mark.parametrize("key", ["problem", "query", "question"])
def test_encrypted_questions_are_refused(tmp_path: Path, key: str) -> None:
    row = {key: encrypted("Which of them was it in the end?"), "answer": encrypted("Paris"), "canary": "BENCHMARK"}
    with pytest.raises(QuestionFileError, match=r"encrypted .* decrypt the file first"):
        load_questions(write(tmp_path / "browsecomp.jsonl", json.dumps(row)))
    decrypted = {key: "Which of them was it in the end?", "answer": "Paris", "canary": "BENCHMARK"}
    assert load_questions(write(tmp_path / "plain.jsonl", json.dumps(decrypted)))[0].gold == "Paris"


def test_hidden_answers_are_refused(tmp_path: Path) -> None:
    row = {"task_id": "g", "Question": "Q?", "Final answer": "?", "Level": 1}
    with pytest.raises(QuestionFileError, match="GAIA hides those of its test split"):
        load_questions(write(tmp_path / "gaia.jsonl", json.dumps(row)))


@pytest.mark.parametrize("kind", ["jsonl", "json", "parquet"])
def test_a_file_of_no_known_form_names_its_keys_and_the_forms(tmp_path: Path, kind: str) -> None:
    row = {"prompt_text": "Q?", "label": "A"}
    path = parquet(tmp_path / "q.parquet", row) if kind == "parquet" else tmp_path / "q.json"
    if kind != "parquet":
        write(path, json.dumps([row] if kind == "json" else row))
    with pytest.raises(QuestionFileError) as caught:
        load_questions(path)
    for part in ('it has "prompt_text", "label"', "known forms: question and answer, TriviaQA, SQuAD, KILT", str(path)):
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_answers_in_a_form_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "q.jsonl", json.dumps({"question": "Q?", "possible_answers": "[a, b"}))
    with pytest.raises(QuestionFileError, match='"possible_answers" is not JSON'):
        load_questions(path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(allow_nan=True) | st.sampled_from(["", "a", "[a", "?"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["text", "answer", "Value", "Aliases", "find", "search", "id", "title"]), inner
        )
    ),
    max_leaves=6,
)
KEYS = sorted(COLUMNS | {"question", "answer", "answers", "steps", "documents", "supporting_facts", "decomposition"})


@settings(max_examples=600, deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS), JSON, max_size=5), st.booleans())
def test_any_row_is_a_question_or_one_reason(row: dict[str, Any], plainly: bool) -> None:
    if plainly:
        row = {"question": "Q?", "answer": "A"} | {k: v for k, v in row.items() if k not in ("question", "answer")}
    with suppress(ValueError):
        question = question_of(plain_row(row)[1], 0)
        plan_meta(row, question)
