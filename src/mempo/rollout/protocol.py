"""The language of a turn: tags, grammar, parsing, and the eight format rules.

    <mem>note</mem> <think>thought</think>
    and one of  <search>query</search> | <access>url</access> | <answer>text</answer>

An environment or a tool may bring further action tags (`TurnGrammar.actions`): tags like the others in its turns, plain
text in everybody else's.

Only text that the policy wrote (or that was written for it, `Turn.forced_ids`) is ever parsed. Parsing is total: every
string gives a `ParsedTurn`, and what went wrong is a value, never an exception.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache, cached_property

from mempo.config.rollout import Presence
from mempo.errors import ConfigError

TAGS = ("mem", "think", "search", "access", "answer", "tool_response")
ACTION_TAGS = ("search", "access", "answer")
_RANK = {"mem": 0, "think": 1}  # actions come last
RESERVED_TAGS = tuple(tag for tag in TAGS if tag not in ("search", "access"))
"""Tags that no tool can answer."""
_ACTION_NAME = re.compile(r"[a-z][a-z0-9_]*")
_INK = re.compile(r"\S")


def opening(tag: str) -> str:
    return f"<{tag}>"


def closing(tag: str) -> str:
    return f"</{tag}>"


def can_be_tag(name: str) -> bool:
    return bool(_ACTION_NAME.fullmatch(name))


@cache
def _tag_pattern(actions: tuple[str, ...]) -> re.Pattern[str]:
    # Exact and case-sensitive: `<SEARCH>` and `<search >` are plain text.
    return re.compile(r"<(/?)(" + "|".join(dict.fromkeys((*TAGS, *actions))) + r")>")


@dataclass(frozen=True)
class TurnGrammar:
    """What a turn of this agent may and must hold. `notes: forbidden` describes an agent without memory (ReAct).

    `actions` may name tags of an environment or a tool of its own beside `search`, `access` and `answer`.

    Raises:
        ConfigError: an action that cannot be a tag, or one that is given twice.
    """

    notes: Presence = "required"
    first_note: Presence = "optional"
    actions: tuple[str, ...] = ACTION_TAGS

    def __post_init__(self) -> None:
        for action in self.actions:
            if not isinstance(action, str) or not can_be_tag(action):
                raise ConfigError(f"{action!r} cannot be an action: give a small letter, then small letters, digits, _")
            if action in TAGS and action not in ACTION_TAGS:
                raise ConfigError(f"{action!r} cannot be an action: the tag means something else already")
        if len(set(self.actions)) < len(self.actions):
            twice = next(action for action in self.actions if self.actions.count(action) > 1)
            raise ConfigError(f"the action {twice!r} is given twice in {', '.join(self.actions)}")

    @cached_property
    def action_tags(self) -> tuple[str, ...]:
        """Every tag that would be an action: those allowed here, and those known everywhere."""
        return tuple(dict.fromkeys((*ACTION_TAGS, *self.actions)))

    def note_rule(self, turn_index: int) -> Presence:
        """Whether turn `turn_index` (0-based) must, may or must not begin with a note."""
        if self.notes == "forbidden":
            return "forbidden"
        return self.first_note if turn_index == 0 else self.notes

    @cached_property
    def stop_strings(self) -> tuple[str, ...]:
        """Generation of a turn ends at the end of the first closed action."""
        return tuple(closing(action) for action in self.actions)


class ParseOutcome(StrEnum):
    """What became of the action of a turn."""

    OK = "ok"
    NO_ACTION = "no_action"
    TWO_ACTIONS = "two_actions"
    EMPTY_ACTION = "empty_action"
    ACTION_NOT_ALLOWED = "action_not_allowed"
    UNCLOSED_TAG = "unclosed_tag"
    TRUNCATED = "truncated"


class NoteStatus(StrEnum):
    """What became of the note of a turn."""

    OK = "ok"
    MISSING = "missing"
    EMPTY = "empty"
    UNCLOSED = "unclosed"
    TRUNCATED = "truncated"  # unclosed because the token limit came first


@dataclass(frozen=True)
class Element:
    """A tag pair found in a turn, in characters: `[start, end)` with tags, `[inner_start, inner_end)` without."""

    tag: str
    start: int
    inner_start: int
    inner_end: int
    end: int
    closed: bool
    depth: int  # 0 = top level

    def inner(self, text: str) -> str:
        return text[self.inner_start : self.inner_end]

    def is_blank(self, text: str) -> bool:
        """Whether there is nothing but white space inside. Copies nothing: for nested tags that is quadratic."""
        return _INK.search(text, self.inner_start, self.inner_end) is None


@dataclass(frozen=True)
class Action:
    """The one thing a turn asks for. `text` is stripped of outer white space."""

    kind: str
    text: str


@dataclass(frozen=True)
class ParsedTurn:
    """A turn as understood. `violations` names the rules that this turn alone breaks."""

    outcome: ParseOutcome
    action: Action | None
    action_element: Element | None
    note: Element | None
    note_status: NoteStatus
    violations: frozenset[str]

    @property
    def is_answer(self) -> bool:
        return self.action is not None and self.action.kind == "answer"

    def without_note(self, note_rule: Presence = "required") -> ParsedTurn:
        """The same turn with its note refused for being too long; that breaks a rule only where a note is due."""
        violations = self.violations | {"memory_present"} if note_rule == "required" else self.violations
        return replace(self, note=None, note_status=NoteStatus.TRUNCATED, violations=violations)


@dataclass(frozen=True)
class Scan:
    """Every tag of a turn: elements by start, and how many closing tags had nothing to close."""

    text: str
    elements: tuple[Element, ...]
    orphan_closings: int

    @property
    def top(self) -> tuple[Element, ...]:
        """Top-level elements, closed ones only."""
        return tuple(e for e in self.elements if e.depth == 0 and e.closed)


def scan(text: str, actions: tuple[str, ...] = ()) -> Scan:
    """Match tags with a stack; `actions` are tags beside the ones known everywhere.

    A closing tag closes the nearest open tag of its name; what it jumps over stays unclosed. An
    unclosed tag swallows the rest of the text: what follows it is inside it, so an answer after a `<think>` that was
    never closed is part of the thought.
    """
    elements: list[Element] = []
    stack: list[tuple[str, int, int]] = []
    open_tags: Counter[str] = Counter()  # of the stack: a closing tag that closes nothing must not search all of it
    orphans = 0
    for match in _tag_pattern(actions).finditer(text):
        is_closing, tag = match.group(1) == "/", match.group(2)
        if not is_closing:
            stack.append((tag, match.start(), match.end()))
            open_tags[tag] += 1
            continue
        if not open_tags[tag]:
            orphans += 1
            continue
        closed = False
        while not closed:
            name, start, inner = stack.pop()
            open_tags[name] -= 1
            closed = name == tag
            end = match.end() if closed else match.start()
            elements.append(Element(name, start, inner, match.start(), end, closed, len(stack)))
    for i in range(len(stack) - 1, -1, -1):
        name, start, inner = stack[i]
        elements.append(Element(name, start, inner, len(text), len(text), False, i))
    return Scan(text, tuple(sorted(elements, key=lambda e: e.start)), orphans)


# --- the eight format rules; each answers "is the rule kept?" ------------------------------------------------------


def balanced(s: Scan, turn_index: int, grammar: TurnGrammar) -> bool:
    """Every opened tag is closed, and none is closed that was not opened."""
    return s.orphan_closings == 0 and all(e.closed for e in s.elements)


def nesting(s: Scan, turn_index: int, grammar: TurnGrammar) -> bool:
    """No tag inside another."""
    return all(e.depth == 0 for e in s.elements)


def order(s: Scan, turn_index: int, grammar: TurnGrammar) -> bool:
    """Note, then thought, then action."""
    ranks = [_RANK.get(e.tag, len(_RANK)) for e in s.elements if e.depth == 0 and e.tag != "tool_response"]
    return ranks == sorted(ranks)


def memory_present(s: Scan, turn_index: int, grammar: TurnGrammar) -> bool:
    """One note where the grammar requires it, none where it forbids it, never two."""
    notes = sum(e.tag == "mem" for e in s.elements if e.depth == 0)
    rule = grammar.note_rule(turn_index)
    return notes == 1 if rule == "required" else notes == 0 if rule == "forbidden" else notes <= 1


def one_think(s: Scan, turn_index: int, grammar: TurnGrammar) -> bool:
    """Exactly one thought a turn."""
    return sum(e.tag == "think" for e in s.elements if e.depth == 0) == 1


def one_action(s: Scan, turn_index: int, grammar: TurnGrammar) -> bool:
    """Exactly one action a turn, of a kind the grammar has."""
    actions = [e.tag for e in s.elements if e.depth == 0 and e.tag in grammar.action_tags]
    return len(actions) == 1 and actions[0] in grammar.actions


def clean(s: Scan, turn_index: int, grammar: TurnGrammar) -> bool:
    """Nothing but white space outside tags, no empty tag, no tool response written by the model.

    Closing tags that close nothing are the business of `balanced` alone.
    """
    outside, position = [], 0
    for e in s.elements:
        if e.depth == 0:
            outside.append(s.text[position : e.start])
            position = e.end
    outside.append(s.text[position:])
    # Piece by piece: `</me` and `m>` on either side of a tag are no closing tag together.
    written = [piece for piece in outside if piece and not piece.isspace()]
    stray = any(_tag_pattern(grammar.actions).sub("", piece).strip() for piece in written)
    empty = any(e.closed and e.is_blank(s.text) for e in s.elements)
    return not stray and not empty and all(e.tag != "tool_response" for e in s.elements)


Rule = Callable[[Scan, int, TurnGrammar], bool]
TURN_RULES: dict[str, Rule] = {
    rule.__name__: rule for rule in (balanced, nesting, order, memory_present, one_think, one_action, clean)
}


def final_answer(turns: Sequence[ParsedTurn]) -> bool:
    """The eighth rule looks at the whole rollout: the last turn answers, and no earlier one does."""
    return bool(turns) and turns[-1].is_answer and not any(turn.is_answer for turn in turns[:-1])


FORMAT_RULES = (*TURN_RULES, "final_answer")


def format_violations(turns: Sequence[ParsedTurn]) -> dict[str, int]:
    """How many turns break each rule, rules that hold left out; `final_answer` counts 1. Empty: the format holds."""
    counts = {rule: sum(rule in turn.violations for turn in turns) for rule in TURN_RULES}
    counts["final_answer"] = int(not final_answer(turns))
    return {rule: n for rule, n in counts.items() if n}


def parse_turn(text: str, turn_index: int, grammar: TurnGrammar, truncated: bool = False) -> ParsedTurn:
    """Understand one turn of the policy.

    Only closed tags at top level count as actions: a search inside a thought, or inside a tag that was never closed, is
    text. A turn with two actions (search and answer, in either order) has none: neither is carried out, in training and
    evaluation alike.

    Args:
        text: forced and generated text together, without the end-of-sequence token.
        turn_index: 0-based; whether a note is due depends on it.
        truncated: whether a token limit ended the generation.
    """
    s = scan(text, grammar.actions)
    violations = frozenset(name for name, rule in TURN_RULES.items() if not rule(s, turn_index, grammar))
    found = [e for e in s.top if e.tag in grammar.action_tags]
    action = element = None
    if len(found) > 1:
        outcome = ParseOutcome.TWO_ACTIONS
    elif len(found) == 1:
        element = found[0]
        content = element.inner(text).strip()
        if element.tag not in grammar.actions:
            outcome = ParseOutcome.ACTION_NOT_ALLOWED
        elif not content:
            outcome = ParseOutcome.EMPTY_ACTION
        else:
            outcome, action = ParseOutcome.OK, Action(element.tag, content)
    elif truncated:
        outcome = ParseOutcome.TRUNCATED
    elif any(not e.closed for e in s.elements):
        outcome = ParseOutcome.UNCLOSED_TAG
    else:
        outcome = ParseOutcome.NO_ACTION
    note, status = _find_note(s, truncated)
    return ParsedTurn(outcome, action, element if action else None, note, status, violations)


def _find_note(s: Scan, truncated: bool) -> tuple[Element | None, NoteStatus]:
    """The first closed top-level note that is not blank; else why there is none."""
    notes = [e for e in s.elements if e.tag == "mem" and e.depth == 0]
    for note in notes:
        if note.closed and not note.is_blank(s.text):
            return note, NoteStatus.OK
    if any(note.closed for note in notes):
        return None, NoteStatus.EMPTY
    if notes:
        return None, NoteStatus.TRUNCATED if truncated else NoteStatus.UNCLOSED
    return None, NoteStatus.MISSING
