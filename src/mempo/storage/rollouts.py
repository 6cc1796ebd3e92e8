"""Saved rollouts: a small jsonl line each, and a sidecar of token arrays found by offset.

The jsonl file alone is enough to score and to compare. The sidecar (`step-N.tokens`, little-endian int32 and float32)
holds what is needed to train or to draw a rollout again. A prompt is stored as "so many tokens kept from an earlier
prompt, plus new ones", so a full-history rollout of many turns does not store its history many times.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from mempo.rollout.protocol import TurnGrammar, parse_turn
from mempo.rollout.tokenizer import Tokenizer, common_prefix
from mempo.rollout.trajectory import GenerationStop, Observation, ObservationPart, StopReason, Trajectory, Turn
from mempo.rollout.turn_text import own_text
from mempo.storage.files import dump_line, read_lines, write_atomic

Advantages = Mapping[int, Sequence[float]]  # {turn: [generated tokens]}


class Sidecar:
    """Arrays appended one after another; each is named by `[offset in items, length]`, items being 4 bytes.
    `start_items`: how many the file holds already."""

    def __init__(self, start_items: int = 0) -> None:
        self._values = array("i")
        self._start_items = start_items

    def put(self, values: Sequence[float] | Sequence[int], kind: str) -> list[int]:
        place = [self._start_items + len(self._values), len(values)]
        # Most are short lists of ids: a numpy array for each would take half of the time of a line.
        if kind == "<i4":
            self._values.extend(cast("Sequence[int]", values))
        else:
            self._values.frombytes(array("f", values).tobytes())
        return place

    def bytes(self) -> bytes:
        values = self._values[:]
        if sys.byteorder == "big":
            values.byteswap()
        return values.tobytes()


def save_rollouts(
    path: Path,
    trajectories: Sequence[Trajectory],
    facts: Sequence[Mapping[str, Any]],
    advantages: Sequence[Advantages] | None = None,
) -> None:
    """Write `path` and its sidecar. `facts[i]` (question, scores, costs …) joins the line of trajectory i."""
    sidecar = Sidecar()
    lines = []
    for i, (trajectory, fact) in enumerate(zip(trajectories, facts, strict=True)):
        values = advantages[i] if advantages is not None else {}
        lines.append(dump_line(rollout_line(trajectory, fact, values, sidecar)))
    write_atomic(tokens_path(path), sidecar.bytes())
    write_atomic(path, "".join(lines))


def tokens_path(path: Path) -> Path:
    return path.with_suffix(".tokens")


def _parts(observation: Observation, sidecar: Sidecar) -> list[list[int]]:
    """`[start, length, cuttable]` of every part."""
    return [[*sidecar.put(part.ids, "<i4"), int(part.cuttable)] for part in observation.parts]


def _observation(parts: Sequence[Sequence[int]] | None, ints: Any) -> Observation | None:
    return Observation(tuple(ObservationPart(tuple(_at(ints, p[:2])), bool(p[2])) for p in parts)) if parts else None


def rollout_line(
    trajectory: Trajectory, fact: Mapping[str, Any], values: Advantages, sidecar: Sidecar
) -> dict[str, Any]:
    """The jsonl record of a rollout; its arrays are put into `sidecar`. Tokens come last in it (see `read_facts`)."""
    turns = []
    known: list[tuple[int, ...]] = [trajectory.question_ids]
    for turn in trajectory.turns:
        source, kept = _longest_kept(known, turn.prompt_ids)
        record: dict[str, Any] = {
            "stop": turn.stop,
            "outcome": turn.parsed.outcome,
            "note": turn.parsed.note_status,
            "prompt": [source, kept, *sidecar.put(turn.prompt_ids[kept:], "<i4")],
            "generated": sidecar.put(turn.generated_ids, "<i4"),
            "logprobs": sidecar.put(turn.logprobs, "<f4"),
        }
        if turn.temperature != 1.0:
            record["temperature"] = turn.temperature
        if turn.forced_ids:
            record["forced"] = list(turn.forced_ids)
        if turn.note_span:
            record["note_span"] = list(turn.note_span)
        if turn.note_ids is not None:
            record["note_ids"] = sidecar.put(turn.note_ids, "<i4")
        if turn.action_ids is not None:
            record["action_ids"] = sidecar.put(turn.action_ids, "<i4")
        if turn.observation is not None:
            record["observation"] = _parts(turn.observation, sidecar)
        if turn.tool_error is not None:
            record["tool_error"] = turn.tool_error
        if turn.index in values:
            record["advantages"] = sidecar.put(values[turn.index], "<f4")
        turns.append(record)
        known.append(turn.prompt_ids)
    own: dict[str, Any] = {
        "question_id": trajectory.question_id,
        "rollout": trajectory.rollout,
        "stop": trajectory.stop,
        "answer": trajectory.answer,
        "error": trajectory.error,
    }
    if trajectory.meta:
        own["meta"] = dict(trajectory.meta)
    tokens = {"question_ids": sidecar.put(trajectory.question_ids, "<i4"), "turns": turns}
    return {**own, **fact, **own, **tokens}  # facts come in between, and never in place of the rollout's own


def _longest_kept(known: Sequence[tuple[int, ...]], prompt: tuple[int, ...]) -> tuple[int, int]:
    """Which earlier prompt (0 = the question, t + 1 = turn t) shares the longest beginning with this one; of several
    the last."""
    best = len(known) - 1
    kept = common_prefix(known[best], prompt)
    for source in range(best - 1, -1, -1):
        if kept == len(prompt):
            break
        if known[source][: kept + 1] == prompt[: kept + 1]:
            best, kept = source, common_prefix(known[source], prompt)
    return best, kept


def load_rollouts(
    path: Path, tokenizer: Tokenizer, grammar: TurnGrammar
) -> tuple[list[Trajectory], list[dict[str, Any]], list[dict[int, list[float]]]]:
    """Trajectories, their jsonl lines, and their advantages, exactly as saved (floats to float32)."""
    ints, floats = open_tokens(path)
    lines = read_lines(path)
    trajectories, advantages = [], []
    for line in lines:
        trajectories.append(trajectory_of(line, ints, floats, tokenizer, grammar))
        advantages.append(
            {t: _at(floats, turn["advantages"]) for t, turn in enumerate(line["turns"]) if "advantages" in turn}
        )
    return trajectories, lines, advantages


def open_tokens(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """The sidecar of a rollout file as int32 and as float32 `[items]`."""
    raw = tokens_path(path).read_bytes()
    return np.frombuffer(raw, "<i4"), np.frombuffer(raw, "<f4")


def _at(array: np.ndarray, place: Sequence[int]) -> list[Any]:
    return array[place[0] : place[0] + place[1]].tolist()


def trajectory_of(
    line: Mapping[str, Any], ints: np.ndarray, floats: np.ndarray, tokenizer: Tokenizer, grammar: TurnGrammar
) -> Trajectory:
    """The rollout of a jsonl record, its arrays taken from `open_tokens`."""
    question_ids = tuple(_at(ints, line["question_ids"]))
    known, turns = [question_ids], []
    for index, record in enumerate(line["turns"]):
        source, kept, *place = record["prompt"]
        prompt_ids = known[source][:kept] + tuple(_at(ints, place))
        known.append(prompt_ids)
        generated, forced = tuple(_at(ints, record["generated"])), tuple(record.get("forced", ()))
        stop = GenerationStop(record["stop"])
        own = forced + generated
        parsed = parse_turn(own_text(tokenizer, own, stop), index, grammar, truncated=stop is GenerationStop.LENGTH)
        note_ids, action_ids = record.get("note_ids"), record.get("action_ids")
        if note_ids is None and parsed.note is not None:  # refused by the loop: too long
            parsed = parsed.without_note(grammar.note_rule(index))
        turns.append(
            Turn(
                index=index,
                prompt_ids=prompt_ids,
                generated_ids=generated,
                logprobs=tuple(_at(floats, record["logprobs"])),
                stop=stop,
                parsed=parsed,
                forced_ids=forced,
                note_span=tuple(record["note_span"]) if "note_span" in record else None,
                note_ids=tuple(_at(ints, note_ids)) if note_ids else None,
                action_ids=tuple(_at(ints, action_ids)) if action_ids else None,
                observation=_observation(record.get("observation"), ints),
                tool_error=record.get("tool_error"),
                temperature=record.get("temperature", 1.0),
            )
        )
    return Trajectory(
        question_id=line["question_id"],
        rollout=line["rollout"],
        question_ids=question_ids,
        turns=tuple(turns),
        stop=StopReason(line["stop"]),
        answer=line["answer"],
        error=line["error"],
        meta=line.get("meta", {}),
    )
