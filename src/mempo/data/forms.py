"""The forms in which data sets write a question, each told by its keys and turned into the plain one.

Plain is `{"id", "question", "answer", …}`, which `rows.py` reads. A form is a function from a row to its plain row, or
None where the row is not of this form.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from mempo.data.answers import as_texts
from mempo.data.rows import ANSWER_KEYS

Row = Mapping[str, Any]

QUESTION_KEYS = ("problem", "query", "Question", "Prompt", "question_text", "qText", "utterance")
_ANSWERS = ("Answer", "Final answer", "possible_answers")
_IDS = ("question_id", "QuestionId", "task_id", "example_id", "qId", "QuestionID")
COLUMNS = frozenset({*QUESTION_KEYS, *_ANSWERS, *_IDS}) | {
    *("input", "output", "annotations", "document_text", "targetValue", "is_impossible"),
    *("Level", "obj", "prop", "file_name", "topic", "problem_topic", "reasoning_types", "canary"),
}
"""What these forms read beside the keys of a plain row, and values worth filtering by."""


def _found(row: Row, keys: tuple[str, ...]) -> Any:
    return next((row[key] for key in keys if row.get(key) is not None), None)


def _plain(row: Row, question: Any, answer: Any, used: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    """The row with its question, answer and id under the keys of a plain one; its other values stay."""
    gone = {*used, *QUESTION_KEYS, *_ANSWERS, *_IDS, *ANSWER_KEYS, "question"}
    rest = {key: value for key, value in row.items() if key not in gone}
    if (id := _found(row, _IDS)) is not None:
        rest = {"id": id, **rest}
    return {**rest, "question": question, "answer": answer, **more}


def _question(row: Row) -> Any:
    return _found(row, ("question", *QUESTION_KEYS))


def trivia_qa(row: Row) -> dict[str, Any] | None:
    """`Answer: {Value, Aliases, NormalizedAliases, HumanAnswers}`, or the same in small letters with underscores."""
    answer = _found(row, ("Answer", "answer"))
    if not isinstance(answer, Mapping) or row.get("decomposition") is not None:
        return None
    parts = {str(key).lower().replace("_", ""): value for key, value in answer.items()}
    if not {"value", "aliases", "normalizedaliases"} & parts.keys():
        return None
    lists = [parts.get(key) or [] for key in ("aliases", "normalizedaliases", "humananswers")]
    names = [parts.get("value"), *(name for names in lists for name in names)]
    return _plain(row, _question(row), list(dict.fromkeys(name for name in names if name)) or None)


def squad(row: Row) -> dict[str, Any] | None:
    """`answers: [{"text", "answer_start"}]`, or `{"text": [...]}`; version 2 has questions without an answer."""
    answers = row.get("answers")
    if isinstance(answers, Mapping) and "text" in answers:
        texts = answers["text"]
    elif isinstance(answers, list) and all(isinstance(item, Mapping) and "text" in item for item in answers):
        texts = [item["text"] for item in answers]
        if not texts and "is_impossible" not in row:
            return None
    else:
        return None
    texts = [text for text in ([texts] if isinstance(texts, str) else texts) if text]
    used = ("plausible_answers", "answer_start")
    return _plain(row, _question(row), list(dict.fromkeys(texts)) or None, used, answerable=bool(texts))


def kilt(row: Row) -> dict[str, Any] | None:
    """`input`, and `output: [{"answer"}, …]`, of which some hold provenance alone."""
    output = row.get("output")
    if not isinstance(row.get("input"), str) or not isinstance(output, list):
        return None
    if not all(isinstance(item, Mapping) for item in output):
        return None
    answers = list(dict.fromkeys(item["answer"] for item in output if item.get("answer")))
    return _plain(row, row["input"], answers or None, ("input", "output", "meta"))


def pop_qa(row: Row) -> dict[str, Any] | None:
    """`possible_answers`, a list that is written as JSON."""
    answers = row.get("possible_answers")
    if answers is None or row.get("question") is None:
        return None
    if isinstance(answers, str) and answers.lstrip().startswith("["):
        try:
            answers = json.loads(answers)
        except ValueError as error:
            raise ValueError(f'"possible_answers" is not JSON ({error})') from None
    return _plain(row, row["question"], answers)


def gaia(row: Row) -> dict[str, Any] | None:
    """`Question`, `Final answer`, `Level`; the answers of its test split are hidden."""
    if row.get("Question") is None or row.get("Final answer") is None:
        return None
    if row["Final answer"] == "?":
        raise ValueError('the answer is "?": GAIA hides those of its test split; use its validation split')
    return _plain(row, row["Question"], row["Final answer"], ("Annotator Metadata",))


def natural_questions(row: Row) -> dict[str, Any] | None:
    """`annotations` with short answers, of the original's or the hub's shape."""
    found, document = row.get("annotations"), row.get("document_text")
    if isinstance(found, Mapping):
        shorts, said = found.get("short_answers") or [], found.get("yes_no_answer") or []
    elif isinstance(found, list) and all(isinstance(item, Mapping) for item in found):
        shorts, said = [item.get("short_answers") for item in found], [item.get("yes_no_answer") for item in found]
    else:
        return None
    question = row.get("question_text") or row.get("question")
    if isinstance(question, Mapping):
        question = question.get("text")
    words = document.split(" ") if isinstance(document, str) else []
    texts: list[str] = []
    for short in shorts:
        for item in short if isinstance(short, list) else [short]:
            if isinstance(item, Mapping) and "text" in item:
                texts += [item["text"]] if isinstance(item["text"], str) else item["text"]
            elif isinstance(item, Mapping) and words:
                texts.append(" ".join(words[item["start_token"] : item["end_token"]]))
    texts += [word.lower() for word in ({0: "NO", 1: "YES"}.get(s, s) for s in said) if word in ("YES", "NO")]
    used = ("annotations", "document_text")
    return _plain(row, question, list(dict.fromkeys(texts)) or None, used, answerable=bool(texts))


def web_questions(row: Row) -> dict[str, Any] | None:
    """`utterance` and `targetValue: (list (description "…") …)`."""
    target = row.get("targetValue")
    if not isinstance(target, str) or row.get("utterance") is None:
        return None
    quoted = re.findall(r'\(description "((?:[^"\\]|\\.)*)"\)|\(description ([^()"]+)\)', target)
    answers = [re.sub(r"\\(.)", r"\1", text) or bare for text, bare in quoted]
    return _plain(row, row["utterance"], answers or None, ("targetValue",))


def asked_differently(row: Row) -> dict[str, Any] | None:
    """Question and answer under other names: SimpleQA and BrowseComp (`problem`), BrowseComp-Plus (`query`), Bamboogle
    (`Question`, `Answer`), FRAMES (`Prompt`)."""
    if row.get("question") is not None or row.get("prompt") is not None or _found(row, QUESTION_KEYS) is None:
        return None
    question, answer = _found(row, QUESTION_KEYS), _found(row, (*ANSWER_KEYS, *_ANSWERS))
    return _plain(row, question, answer) if answer is not None else None


FORMS: dict[str, Callable[[Row], dict[str, Any] | None]] = {
    "TriviaQA": trivia_qa,
    "SQuAD": squad,
    "KILT": kilt,
    "PopQA": pop_qa,
    "GAIA": gaia,
    "Natural Questions": natural_questions,
    "WebQuestions": web_questions,
    "SimpleQA, BrowseComp or Bamboogle": asked_differently,
}
KNOWN = f"question and answer, {', '.join(FORMS)}, parquet of Search-R1, MEM1 and verl (docs/data.md)"
"""The forms as an error message tells them."""

_ASKS, _ANSWERS_PLAIN = ("question", "prompt", "extra_info"), (*ANSWER_KEYS, "reward_model", "answerable")


def plain_row(row: Row) -> tuple[str, Row]:
    """The name of a row's form, "" for a plain one, and the plain row, its answers as texts.

    Raises:
        ValueError: the row is of no known form, its question is encrypted, its answer hidden or not to be read.
    """
    name, plain = _recognised(row)
    keys = ", ".join(f'"{key}"' for key in list(row)[:12]) or "no keys"
    if not any(key in plain for key in _ASKS):
        raise ValueError(f'has no "question"; it has {keys}; known forms: {KNOWN}')
    if not any(key in plain for key in _ANSWERS_PLAIN):
        looked = ", ".join(f'"{key}"' for key in ANSWER_KEYS)
        raise ValueError(f"has no answer (looked for {looked}); it has {keys}; known forms: {KNOWN}")
    _refuse_encrypted(plain)
    changed: dict[str, Any] = {}
    if plain.get("decomposition") is None:
        changed = {key: as_texts(plain[key]) for key in ANSWER_KEYS if plain.get(key) is not None}
    if (impossible := _truth(plain.get("is_impossible"))) is not None:
        changed["answerable"] = not impossible
    elif (answerable := _truth(plain.get("answerable"))) is not None:
        changed["answerable"] = answerable
    return name, {**plain, **changed}


def _recognised(row: Row) -> tuple[str, Row]:
    for name, form in FORMS.items():
        try:
            found = form(row)
        except (TypeError, KeyError, IndexError, AttributeError) as error:
            raise ValueError(f"looks like {name} and cannot be read ({type(error).__name__}: {error})") from None
        if found is not None:
            return name, found
    return "", row


def _truth(value: Any) -> bool | None:
    """Tables hold text alone."""
    return {"true": True, "false": False}.get(str(value).strip().lower())


def is_unanswerable(row: Row) -> bool:
    """Whether a row says that the documents do not answer its question (MuSiQue-Full, SQuAD 2)."""
    return row.get("answerable") is False


def asks_for_unanswerable(wanted: Row) -> bool:
    """Whether a filter (`data.where`) speaks of such questions itself."""
    return not {"answerable", "is_impossible"}.isdisjoint(wanted)


def _refuse_encrypted(row: Row) -> None:
    """BrowseComp and others publish base64 of encrypted text, so that no crawler learns the answers."""
    if all(_is_base64(row.get(key), least) for key, least in (("question", 24), ("answer", 4))):
        raise ValueError(
            "question and answer are encrypted (base64 without a word); decrypt the file first with its publisher's "
            "script, which takes the key from the canary"
        )


def _is_base64(value: Any, least: int) -> bool:
    if not isinstance(value, str) or len(value) < least or len(value) % 4 or " " in value.strip():
        return False
    try:
        base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return False
    return True
