"""The figures of a diagnosis as data: panels, and a caption that says what is healthy and what to change.

Only numbers and fixed words are drawn, and the name of the run as plain text: `$` and backslashes in it are not
formulas, control characters are replaced.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from mempo.diagnose.control import CONTEXTS
from mempo.diagnose.verdicts import at
from mempo.evaluate.grid import printable
from mempo.evaluate.plots import COLOURS, GREY, curve, finish, new_figure, save_figure

WIDTH_INCHES, HEIGHT_INCHES = 9.0, 4.4
CAPTION_SHARE, CAPTION_CHARS = 0.16, 150
SHARES = (-0.03, 1.03)
Report = Mapping[str, Any]
Draw = Callable[[Axes], None]
Panel = Callable[[Report], Draw | None]
"""What to draw of a report on one pair of axes; None: there is nothing to show."""


@dataclass(frozen=True)
class Drawn:
    """A figure. `whole_run`: it is about all of training, not about one file of rollouts."""

    title: str
    caption: str
    panels: tuple[Panel, ...]
    whole_run: bool = False
    share_y: bool = False


def save_figures(report: Report, folder: Path) -> list[dict[str, str]]:
    """Draw every figure that has something to show; `[{name, title, caption, png, svg}]`, files by name."""
    made = []
    for name, drawn in FIGURES.items():
        draws = [draw for panel in drawn.panels if (draw := panel(report)) is not None]
        if not draws:
            continue
        with new_figure(WIDTH_INCHES, HEIGHT_INCHES) as figure:
            rows = 2 if len(draws) > 3 else 1
            axes = figure.subplots(rows, -(-len(draws) // rows), squeeze=False, sharey=drawn.share_y).flatten()
            for axis, draw in zip(axes, draws, strict=False):
                draw(axis)
            for axis in axes[len(draws) :]:
                axis.set_visible(False)
            where = printable(report["run"]) + ("" if drawn.whole_run else f", {report['rollouts']['file']}")
            figure.suptitle(f"{drawn.title}  ({where})", fontsize=10)
            caption = textwrap.fill(drawn.caption, CAPTION_CHARS)
            figure.text(0.02, 0.01, caption, fontsize=8, va="bottom", color="#333333")
            engine: Any = figure.get_layout_engine()
            engine.set(rect=(0, CAPTION_SHARE, 1, 1 - CAPTION_SHARE))
            figure.draw_without_rendering()  # the layout once, not for every format
            figure.set_layout_engine("none")
            files = save_figure(figure, folder, name)
        made.append({"name": name, "title": drawn.title, "caption": drawn.caption, **files})
    return made


# --- panels --------------------------------------------------------------------------------------------------------


def lines(
    rows: str,
    labels: Mapping[str, str],
    y_label: str,
    x: tuple[str, str] = ("turn", "turn"),
    limits: tuple[float | None, float | None] | None = None,
    healthy: tuple[float, float] | None = None,
) -> Panel:
    """Curves of columns: `rows` is the path of a list of rows, or of a mapping of columns. A curve that lies exactly on
    an earlier one is left out. `x`: column and label; `healthy`: a band drawn behind."""

    def panel(report: Report) -> Draw | None:
        found = at(report, rows)
        columns = found if isinstance(found, Mapping) else _columns(found, (x[0], *labels))
        shown: dict[str, Sequence[Any]] = {}
        for name, label in labels.items():
            values = columns.get(name, [])
            if any(value is not None for value in values) and values not in shown.values():
                shown[label] = values
        if not shown:
            return None

        def draw(axis: Axes) -> None:
            for (label, values), colour in zip(shown.items(), COLOURS, strict=False):
                curve(axis, columns[x[0]], values, label, colour, ":" if label.startswith("given") else "-")
            if healthy:
                axis.axhspan(*healthy, color=GREY, alpha=0.12)
            if limits:
                axis.set_ylim(*limits)
            if x[0] == "turn":
                axis.set_xticks(columns["turn"])
            finish(axis, x[1], y_label)

        return draw

    return panel


def bars(path: str, labels: Mapping[str, str], x_label: str, y_label: str) -> Panel:
    """A bar for every value under `path` that is known."""

    def panel(report: Report) -> Draw | None:
        values = at(report, path) or {}
        known = {label: values[name] for name, label in labels.items() if values.get(name) is not None}
        if not known:
            return None

        def draw(axis: Axes) -> None:
            axis.bar(range(len(known)), list(known.values()), color=COLOURS[: len(known)], width=0.6)
            axis.set_xticks(range(len(known)), list(known))
            axis.set_xlim(-0.75, len(known) - 0.25)
            axis.set_ylim(0, max(1, *known.values()))
            finish(axis, x_label, y_label)

        return draw

    return panel


def against_r(name: str, x_label: str, y_label: str = "") -> Panel:
    """Every note's r against another of its values, both less the mean of their pool."""

    def panel(report: Report) -> Draw | None:
        points = [point for point in report["points"] if point[name] is not None]
        if not report["points"]:
            return None
        found = report["correlation"]
        value = found[{"score": "outcome", "note_tokens": "length"}.get(name, name)]
        title = "does not vary" if value is None else f"correlation {value:+.2f}"
        if name == "note_tokens" and found["length_alike"] is not None:
            title += f", {found['length_alike']:+.2f} if equally complete"

        def draw(axis: Axes) -> None:
            axis.scatter(_within(points, name), _within(points, "r"), s=8, alpha=0.35, color=COLOURS[0], linewidths=0)
            axis.set_title(title, fontsize=9)
            finish(axis, f"{x_label}, less pool mean", y_label)

        return draw

    return panel


def _columns(rows: Sequence[Report], names: Sequence[str]) -> dict[str, list[Any]]:
    return {name: [row.get(name) for row in rows] for name in names}


def _within(points: Sequence[Report], name: str) -> list[float]:
    """Values less the mean of their pool."""
    pools: dict[str, list[float]] = {}
    for point in points:
        pools.setdefault(point["pool"], []).append(point[name])
    means = {pool: sum(values) / len(values) for pool, values in pools.items()}
    return [point[name] - means[point["pool"]] for point in points]


def _training(labels: Mapping[str, str], y_label: str) -> Panel:
    return lines("curves", labels, y_label, ("step", "RL step"))


_CONTEXT_LABELS = {"note": "note", "other": "other's note", "empty": "empty note", "history": "history"}

FIGURES: dict[str, Drawn] = {
    "curves": Drawn(
        "Training, step by step",
        "Healthy: the score rises and settles, format stays above 0.9, notes and turns settle, and memory's share of "
        "the advantages lies between 0.05 and 0.7; if notes shrink or turns fall while the score does not rise, the "
        "signal pays for that: set memory.pool=turn and memory.threshold=none.",
        (
            _training({"score": "score", "em": "em", "format_ok": "format ok"}, "score, format (share)"),
            _training({"note_tokens": "note tokens"}, "note length (tokens)"),
            _training({"turns": "turns", "searches": "searches"}, "turns, searches (count)"),
            _training({"memory/p_mem_raw": "P(mem)", "memory/r": "r"}, "P (probability) and r"),
            _training(
                {
                    "advantages/memory_share": "notes' share",
                    "advantages/memory_only_groups": "groups where only notes pay",
                    "advantages/zero_spread_groups": "groups of equal scores",
                },
                "advantages of notes (share)",
            ),
            _training({"update/entropy": "entropy"}, "entropy (nats)"),
        ),
        whole_run=True,
    ),
    "by_turn": Drawn(
        "P, r and advantages by turn",
        "Left, how well the gold answer is predicted from the note, its baseline and the history; right, the mean "
        "advantage of each turn, healthy within the grey band for what was given: a slope rewards early or late turns "
        "whatever their notes say, and memory.pool=turn removes it.",
        (
            lines(
                "by_turn",
                {
                    "p_mem_raw": "P(mem), as saved",
                    "p_baseline": "P(baseline), as saved",
                    "r": "r, as saved",
                    "now_history": "P(history), now",
                },
                "probability of the gold answer",
            ),
            lines(
                "by_turn",
                {
                    "advantage_question": "pool: question",
                    "advantage_turn": "pool: turn",
                    "advantage": "given in this run",
                },
                "mean advantage (standard deviations)",
                healthy=(-0.15, 0.15),
            ),
        ),
    ),
    "control": Drawn(
        "Is the note read, or is a short context easy?",
        "P(answer) given the note, another question's note of about the same length, an empty note and the whole "
        "history: healthy is a note clearly above both controls and near the history or above; else raise "
        "sft.probe_share (the probe is not understood), or look at what notes leave out.",
        (
            bars("control", _CONTEXT_LABELS, "context", "P(gold answer), mean"),
            lines("by_turn", {f"now_{name}": _CONTEXT_LABELS[name] for name in CONTEXTS}, "P(gold answer), mean"),
        ),
    ),
    "advantages": Drawn(
        "Who pays",
        "Groups by which advantages they get, and the gold tokens that the threshold keeps in P: healthy is a majority "
        "with advantages from the outcome, and all tokens kept; where only notes pay, the dense signal drowns the "
        "outcome (memory.gate=when_group_varies), and where tokens are hidden set memory.threshold=none.",
        (
            bars(
                "advantages",
                {"both": "both", "outcome_only": "outcome only", "memory_only": "memory only", "neither": "neither"},
                "which advantages the group gets",
                "groups (share)",
            ),
            bars("gold_tokens", {"mem": "note", "baseline": "baseline"}, "side", "gold tokens kept (share)"),
        ),
    ),
    "correlation": Drawn(
        "What r goes with, within a question and turn",
        "Each point is a note: r should rise with completeness (above +0.2), not fall with the outcome (above -0.1), "
        "and not follow length (within ±0.5); else set memory.threshold=none and memory.baseline=none, or "
        "memory.length_penalty against long notes.",
        (
            against_r("completeness", "completeness (share)", "r, less pool mean"),
            against_r("score", "score"),
            against_r("note_tokens", "note length (tokens)"),
        ),
        share_y=True,
    ),
    "faithfulness": Drawn(
        "Do notes say what the tools said, and keep it?",
        "Healthy: answers seen that the note holds above 0.8, answers lost again and facts that no observation held "
        "below 0.1; what notes drop calls for a higher memory.weight or sft.expert.lossless_share, what they invent "
        "for a KL term (rl.loss.kl=k3).",
        (
            lines(
                "by_turn",
                {
                    "gold_kept": "answers seen that the note holds",
                    "gold_lost": "answers noted and lost again",
                    "unheld": "facts that no observation held",
                    "dropped": "facts of the last note dropped",
                },
                "share",
                limits=SHARES,
            ),
        ),
    ),
    "repetition": Drawn(
        "What is new in a note",
        "The share of new words in a note, of notes that copy the one before (healthy below 0.3), and of notes that "
        "occur in another question's rollouts too (below 0.2): memory.baseline=previous_note takes the advantage from "
        "copies, a KL term or a lower memory.weight keeps templates away.",
        (
            lines(
                "by_turn",
                {"novelty": "new words", "copies": "copies of the last note", "templates": "shared by questions"},
                "share",
                limits=SHARES,
            ),
        ),
    ),
    "collapse": Drawn(
        "Notes over training",
        "How different the rollouts of a group are in notes and searches (0 all alike), and how well notes of "
        "different questions compress beside the questions themselves: a variety of notes below 0.05 before the score "
        "has risen, or a compression above 2, is collapse: lower rl.optim.lr, or raise rl.loss.kl_coef.",
        (
            lines(
                "note_curves",
                {
                    "distinct_notes": "distinct notes",
                    "distinct_queries": "distinct queries",
                    "copies": "copies",
                    "templates": "templates",
                },
                "share",
                ("step", "RL step"),
                limits=SHARES,
            ),
            lines(
                "note_curves",
                {"compression_across": "one note a question"},
                "compression, over that of the questions",
                ("step", "RL step"),
                limits=(0, None),
                healthy=(0, 2),
            ),
        ),
        whole_run=True,
    ),
}
