"""Which rollouts of a file to look at: the questions that people bring, as rules on rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from mempo.rollout.protocol import FORMAT_RULES
from mempo.view.folder import ViewedFolder
from mempo.view.rollouts import GOOD_P, RolloutFile, Row

Rule = Callable[[Row], bool]

_RULES: dict[str, tuple[str, Rule]] = {
    "wrong-good-note": (
        f"wrong answer, good note (P(mem) ≥ {GOOD_P:g})",
        lambda row: row.right is False and row.good_note is True,
    ),
    "right-bad-note": (
        f"right answer, bad note (P(mem) < {GOOD_P:g})",
        lambda row: row.right is True and row.good_note is False,
    ),
    "right": ("right answer", lambda row: row.right is True),
    "wrong": ("wrong answer", lambda row: row.right is False),
    "tool-error": ("a tool failed", lambda row: row.tool_errors > 0),
    "failed": ("failed by infrastructure", lambda row: row.is_error),
    "longest-notes": ("longest notes first", lambda row: row.note_tokens > 0),
    "copies": ("a note that copies the one before", lambda row: row.turns > 1),  # and see `chosen`
}
for _name in FORMAT_RULES:
    _RULES[f"format-{_name}"] = (f"format broken: {_name}", lambda row, rule=_name: rule in row.broken_rules)

FILTERS: dict[str, str] = {name: title for name, (title, _) in _RULES.items()}


def chosen(
    folder: ViewedFolder, file: RolloutFile, name: str, text: str, start: int, count: int
) -> tuple[list[Row], bool]:
    """`count` rows that the filter lets through and that hold the text, from the `start`-th on, and whether there may
    be more. Text is looked for in question, answer and id, then in what was written and found in the rollout.

    Raises:
        UserError: a text is asked for and the tokenizer is not to be had.
    """
    rows: Iterable[Row] = file.rows()
    if name in _RULES:
        rule = _RULES[name][1]
        rows = [row for row in rows if rule(row)]
        if name == "longest-notes":
            rows = sorted(rows, key=lambda row: -row.note_tokens)
    if name == "copies":
        rows = (row for row in rows if file.has_copied_note(row.number))
    if text:
        rows = (row for row in rows if _holds(folder, file, row, text.casefold()))
    page: Sequence[Row] = list(islice(rows, start, start + count + 1))
    return list(page[:count]), len(page) > count


def _holds(folder: ViewedFolder, file: RolloutFile, row: Row, wanted: str) -> bool:
    if any(wanted in known.casefold() for known in (row.question, row.answer or "", row.question_id)):
        return True
    return any(wanted in text.casefold() for text in file.texts(row.number, folder.tokenizer()))
