"""One row of a question file, whatever data set it comes from, to a question."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mempo.data.written import read_written
from mempo.rollout.question import Gold, Question, as_gold
from mempo.storage.jsonl import json_name, valid_text

ID_KEYS = ("qid", "id", "idx", "query_id", "_id")
ANSWER_KEYS = ("golden_answers", "answer", "answers", "gt", "ground_truth", "aug_answer")
"""The first of these that is there and not null is the gold answer."""

PROMPT_MARKERS = ("Answer the following questions:", "Question:")
"""What stands before the question in the prompts of the parquet files in use."""

ANSWER_SPLIT = "<|answer_split|>"
"""Stands between the answers of several objectives where a file holds them as one string."""

_READ = frozenset({*ID_KEYS, *ANSWER_KEYS, "question", "answer_aliases", "prompt", "reward_model", "extra_info"})


def question_of(row: Mapping[str, Any], row_number: int) -> Question:
    """The question in a row; a row without an id gets its number. Raises ValueError with the reason.

    `meta` keeps the row's other plain values (type, level, data_source, ...), what an object "meta" holds, and
    `aug_answer` where that is not the gold.
    """
    text = _text(row)
    reward_model = read_written(row.get("reward_model"))
    if isinstance(reward_model, Mapping):
        raw = _rewarded(reward_model)
    elif isinstance(row.get("decomposition"), list):
        raw = fanout_gold(_answered(row))
    else:
        raw = _answered(row)
    if isinstance(raw, list) and len(raw) == 1 and isinstance(raw[0], str) and ANSWER_SPLIT in raw[0]:
        raw = raw[0]
    if isinstance(raw, str) and ANSWER_SPLIT in raw:
        raw = [[part.strip()] for part in raw.split(ANSWER_SPLIT)]
    meta = {k: _clean(v) for k, v in row.items() if k not in _READ and isinstance(v, str | int | float | bool)}
    if isinstance(row.get("meta"), Mapping):
        meta |= {str(k): _clean(v) for k, v in row["meta"].items()}
    probe = row.get("probe")
    if probe is not None and (not isinstance(probe, str) or not probe.strip()):
        raise ValueError(f'"probe" must be a string that is not blank, not {json_name(probe)}')
    more = read_written(row.get("aug_answer"))
    if more is not None and more != raw:
        meta["aug_answer"] = _clean(more)
    return Question(id=_id(row, row_number), text=text, gold=_gold(_clean(raw)), probe=probe, meta=meta)


def _text(row: Mapping[str, Any]) -> str:
    extra = row.get("extra_info")
    value = row.get("question")
    if value is None and isinstance(extra, Mapping):
        value = extra.get("question")
    if value is None and row.get("prompt") is not None:
        value = _asked(row["prompt"])
    if value is None:
        raise ValueError(f'has no "question"; it has {_keys(row)}')
    if not isinstance(value, str):
        raise ValueError(f'"question" must be a string, not {json_name(value)}')
    text = valid_text(value).strip()
    if not text:
        raise ValueError("the question is blank")
    return text


def _asked(prompt: Any) -> str:
    """What follows the marker in the last user message; the whole message when no marker is there."""
    messages = [prompt] if isinstance(prompt, str) else []
    if isinstance(prompt, list):
        messages = [m.get("content") for m in prompt if isinstance(m, Mapping) and m.get("role") == "user"]
    if not messages or not isinstance(messages[-1], str):
        raise ValueError('"prompt" must be a list of messages with a user\'s text in it')
    message = messages[-1]
    # The earliest marker: a question may itself hold the word.
    places = sorted((message.find(marker), marker) for marker in PROMPT_MARKERS if marker in message)
    return message[places[0][0] + len(places[0][1]) :] if places else message


def _id(row: Mapping[str, Any], row_number: int) -> str:
    key, value = next(((key, row[key]) for key in ID_KEYS if row.get(key) is not None), ("", None))
    extra = row.get("extra_info")
    if value is None and isinstance(extra, Mapping) and extra.get("index") is not None:
        key, value = "index", extra["index"]
    parts = value if isinstance(value, list) and value else [row_number if value is None else value]
    if not all(isinstance(part, str | int) and not isinstance(part, bool) for part in parts):
        raise ValueError(f'"{key}" must be a string or an integer, not {json_name(value)}')
    name = valid_text("+".join(str(part) for part in parts))
    # Files merged from several data sets number each of them from the same start.
    source = row.get("data_source")
    return f"{valid_text(source)}/{name}" if isinstance(source, str) and source and value is not None else name


def _answered(row: Mapping[str, Any]) -> Any:
    answer = next((row[key] for key in ANSWER_KEYS if row.get(key) is not None), None)
    if answer is None:
        keys = ", ".join(f'"{key}"' for key in ANSWER_KEYS)
        raise ValueError(f"has no answer (looked for {keys}, or reward_model.ground_truth); it has {_keys(row)}")
    answer, aliases = _target(answer), read_written(row.get("answer_aliases"))
    if aliases and isinstance(answer, str) and isinstance(aliases, list):
        return [answer, *(alias for alias in aliases if alias != answer)]
    return answer


def _rewarded(reward_model: Mapping[str, Any]) -> Any:
    target = _target(reward_model.get("ground_truth"))
    if target is None or isinstance(target, Mapping):
        raise ValueError('"reward_model" has no ground_truth.target')
    return target


def _target(value: Any) -> Any:
    """The answers of a ground truth, which may be written out as text."""
    value = read_written(value)
    return read_written(value["target"]) if isinstance(value, Mapping) and "target" in value else value


def fanout_gold(answer: Any) -> Any:
    """The answer of a FanOutQA row as gold: all of a list's members, and all of an object's values, are wanted, so each
    is an objective of its own. A value of an object may be given with its key before it ("France: Paris").

    Raises:
        ValueError: it holds something else than texts, numbers, yes or no, lists and objects of these.
    """
    if isinstance(answer, Mapping):
        return [_under_key(str(key), value) for key, value in answer.items()]
    if isinstance(answer, list):
        return [fanout_texts(value) for value in answer]
    return fanout_texts(answer)


def fanout_texts(value: Any) -> list[str]:
    """The ways to write one member: of a number with and without commas; a nested list is written as one text."""
    if isinstance(value, bool):
        return ["yes", "true"] if value else ["no", "false"]
    if isinstance(value, int | float):
        return list(dict.fromkeys([f"{value}", f"{value:,}"]))
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        return [", ".join(fanout_texts(item)[0] for item in value)]
    if isinstance(value, Mapping):
        return [", ".join(f"{key}: {fanout_texts(item)[0]}" for key, item in value.items())]
    raise ValueError(f"the answer holds {json_name(value)}")


def _under_key(key: str, value: Any) -> list[str]:
    texts = fanout_texts(value)
    return [*texts, *(f"{key}: {text}" for text in texts)]


def _gold(value: Any) -> Gold:
    try:
        return as_gold(value)
    except ValueError as error:
        raise ValueError(f"unusable answer: {error}") from None


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return valid_text(value)
    return [_clean(item) for item in value] if isinstance(value, list) else value


def _keys(row: Mapping[str, Any]) -> str:
    return ", ".join(f'"{key}"' for key in list(row)[:8]) or "no keys"
