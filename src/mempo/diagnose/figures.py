"""The figures of a diagnosis, each as PNG and SVG with its caption under it. Drawn without a display.

Only numbers and fixed words are drawn, and the name of the run as plain text: `$` and backslashes in it are no
formulas, control characters are replaced.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mempo.diagnose.captions import CAPTIONS
from mempo.diagnose.control import CONTEXTS
from mempo.diagnose.table import printable
from mempo.evaluate.plots import finish, new_figure, save_figure

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#7f7f7f")  # apart for colour-blind eyes too
WIDTH_INCHES, HEIGHT_INCHES = 9.0, 4.4
CAPTION_SHARE, CAPTION_CHARS = 0.16, 150
OVER_STEPS = ("curves", "collapse")
Report = Mapping[str, Any]
Draw = Callable[[Figure, Report], bool]


def save_figures(report: Report, folder: Path) -> list[dict[str, str]]:
    """Draw every figure that has something to show; `[{name, title, caption, png, svg}]`, files by name."""
    made = []
    for name, draw in FIGURES.items():
        title, caption = CAPTIONS[name]
        with new_figure(WIDTH_INCHES, HEIGHT_INCHES) as figure:
            if not draw(figure, report):
                continue
            where = printable(report["run"]) + ("" if name in OVER_STEPS else f", {report['rollouts']['file']}")
            figure.suptitle(f"{title}  ({where})", fontsize=10)
            figure.text(0.02, 0.01, textwrap.fill(caption, CAPTION_CHARS), fontsize=8, va="bottom", color="#333333")
            engine: Any = figure.get_layout_engine()
            engine.set(rect=(0, CAPTION_SHARE, 1, 1 - CAPTION_SHARE))
            figure.draw_without_rendering()  # the layout once, not for every format
            figure.set_layout_engine("none")
            files = save_figure(figure, folder, name)
        made.append({"name": name, "title": title, "caption": caption, **files})
    return made


# --- one function a figure; False: there is nothing to draw --------------------------------------------------------


def _curves(figure: Figure, report: Report) -> bool:
    panels = {
        "score, format (share)": ("score", "em", "format_ok"),
        "note length (tokens)": ("note_tokens",),
        "turns, searches (count)": ("turns", "searches"),
        "P (probability) and r": ("memory/p_mem_raw", "memory/r"),
        "memory credit (share)": ("credit/memory_share", "credit/memory_only_groups", "credit/zero_spread_groups"),
        "entropy (nats)": ("update/entropy",),
    }
    curves = report["curves"]
    known = {label: _different(curves, [n for n in names if n in curves]) for label, names in panels.items()}
    known = {label: names for label, names in known.items() if names}
    if not known:
        return False
    rows = 2 if len(known) > 3 else 1
    axes = figure.subplots(rows, -(-len(known) // rows), squeeze=False).flatten()
    for axis, (label, names) in zip(axes, known.items(), strict=False):
        for name, colour, style in zip(names, COLOURS, ("-", "--", ":"), strict=False):
            _line(axis, curves["step"], curves[name], name.split("/")[-1], colour, style)
        finish(axis, "RL step", label)
    for axis in axes[len(known) :]:
        axis.set_visible(False)
    return True


def _different(curves: Report, names: Sequence[str]) -> list[str]:
    """Without those that lie exactly on an earlier one: r on P(mem) without a baseline, em on score."""
    return [name for i, name in enumerate(names) if curves[name] not in [curves[other] for other in names[:i]]]


def _by_turn(figure: Figure, report: Report) -> bool:
    rows = report["by_turn"]
    if not any(row["notes"] for row in rows):
        return False
    turns = [row["turn"] for row in rows]
    left, right = figure.subplots(1, 2)
    _line(left, turns, [row["p_mem_raw"] for row in rows], "P(mem), as saved", COLOURS[0])
    baseline = report["settings"]["baseline"]
    if baseline != "none":
        _line(left, turns, [row["p_base"] for row in rows], f"P({baseline}), as saved", COLOURS[1])
        _line(left, turns, [row["r"] for row in rows], "r, as saved", COLOURS[2])
    asked = (report["control"] or {}).get("by_turn", [])
    at = [row["turn"] for row in asked]
    _line(left, at, [row["history"] for row in asked], "P(history), now", COLOURS[3], "--")
    finish(left, "turn", "probability of the gold answer")
    _line(right, turns, [row["credit_question"] for row in rows], "pool: question", COLOURS[1])
    _line(right, turns, [row["credit_turn"] for row in rows], "pool: turn", COLOURS[2])
    _line(right, turns, [row["credit"] for row in rows], "given in this run", COLOURS[0], ":")
    right.axhspan(-0.15, 0.15, color=COLOURS[4], alpha=0.12)
    finish(right, "turn", "mean credit (standard deviations)")
    for axis in (left, right):
        axis.set_xticks(turns)
    return True


def _control(figure: Figure, report: Report) -> bool:
    control = report["control"]
    if not control or not control["notes"]:
        return False
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.4))
    names = [name for name in CONTEXTS if control[name] is not None]
    left.bar(range(len(names)), [control[name] for name in names], color=COLOURS[: len(names)], width=0.6)
    left.set_xticks(range(len(names)), [_CONTEXT_LABELS[name] for name in names])
    finish(left, f"context ({control['notes']} notes)", "P(gold answer), mean")
    rows = control["by_turn"]
    for name, colour in zip(CONTEXTS, COLOURS, strict=False):
        _line(right, [row["turn"] for row in rows], [row[name] for row in rows], _CONTEXT_LABELS[name], colour)
    right.set_xticks([row["turn"] for row in rows])
    finish(right, "turn", "P(gold answer), mean")
    return True


_CONTEXT_LABELS = {"note": "note", "other": "other's note", "empty": "empty note", "history": "history"}


def _credit(figure: Figure, report: Report) -> bool:
    credit, kept = report["credit"], report["gold_kept"]
    kinds = [kind for kind in ("both", "outcome_only", "memory_only", "neither") if credit[kind] is not None]
    sides = [side for side in ("mem", "base") if kept[side] is not None]
    if not kinds:
        return False
    left, right = figure.subplots(1, 2, width_ratios=(1.6, 1))
    left.bar(range(len(kinds)), [credit[kind] for kind in kinds], color=COLOURS[: len(kinds)], width=0.6)
    left.set_xticks(range(len(kinds)), [kind.replace("_", " ") for kind in kinds])
    left.set_ylim(0, 1)
    share = credit["memory_share"]
    extra = "" if share is None else f"; notes earn {share:.0%} of all |credit|"
    finish(left, f"which credit the group gets{extra}", "groups (share)")
    right.bar(range(len(sides)), [kept[side] for side in sides], color=COLOURS[: len(sides)], width=0.5)
    right.set_xticks(range(len(sides)), [{"mem": "note", "base": "baseline"}[side] for side in sides])
    right.set_xlim(-0.75, max(len(sides), 1) - 0.25)
    right.set_ylim(0, 1)
    finish(right, f"side (threshold: {report['settings']['threshold']})", "gold tokens kept (share)")
    return True


def _correlation(figure: Figure, report: Report) -> bool:
    points, found = report["points"], report["correlation"]
    panels = [
        ("completeness", "completeness (share)", "completeness"),
        ("score", "score", "outcome"),
        ("note_tokens", "note length (tokens)", "length"),
    ]
    if not points:
        return False
    for axis, (name, label, key) in zip(figure.subplots(1, 3, sharey=True), panels, strict=True):
        known = [point for point in points if point[name] is not None]
        xs, ys = _within(known, name), _within(known, "r")
        axis.scatter(xs, ys, s=8, alpha=0.35, color=COLOURS[0], linewidths=0)
        value = found[key]
        title = "does not vary" if value is None else f"correlation {value:+.2f}"
        if name == "note_tokens" and found["length_alike"] is not None:
            title += f", {found['length_alike']:+.2f} if equally complete"
        axis.set_title(title, fontsize=9)
        finish(axis, f"{label}, less pool mean", "r, less pool mean" if name == "completeness" else "")
    return True


def _faithfulness(figure: Figure, report: Report) -> bool:
    rows = report["faithfulness"]["by_turn"]
    return _shares(
        figure,
        rows,
        {
            "gold_kept": "answers seen that the note holds",
            "gold_lost": "answers noted and lost again",
            "unheld": "facts that no observation held",
            "dropped": "facts of the last note dropped",
        },
    )


def _repetition(figure: Figure, report: Report) -> bool:
    names = {"novelty": "new words", "copies": "copies of the last note", "templates": "shared with other questions"}
    return _shares(figure, report["repetition"]["by_turn"], names)


def _collapse(figure: Figure, report: Report) -> bool:
    rows = report["note_curves"]
    if len(rows) < 2:
        return False
    steps = [row["step"] for row in rows]
    left, right = figure.subplots(1, 2)
    for name, colour in zip(("distinct_notes", "distinct_queries", "copies", "templates"), COLOURS, strict=False):
        _line(left, steps, [row[name] for row in rows], name.replace("_", " "), colour)
    left.set_ylim(-0.03, 1.03)
    finish(left, "RL step", "share")
    _line(right, steps, [row["compression_across"] for row in rows], "one note a question", COLOURS[0])
    right.axhspan(0, 2, color=COLOURS[4], alpha=0.12)
    right.set_ylim(bottom=0)
    finish(right, "RL step", "compression, over that of the questions")
    return True


# --- drawing -------------------------------------------------------------------------------------------------------


def _shares(figure: Figure, rows: Sequence[Report], names: Mapping[str, str]) -> bool:
    if not rows:
        return False
    axis = figure.subplots()
    for (name, label), colour in zip(names.items(), COLOURS, strict=False):
        _line(axis, [row["turn"] for row in rows], [row[name] for row in rows], label, colour)
    axis.set_xticks([row["turn"] for row in rows])
    axis.set_ylim(-0.03, 1.03)
    finish(axis, "turn", "share")
    return True


def _line(axis: Axes, xs: Sequence[Any], ys: Sequence[float | None], label: str, colour: str, style: str = "-") -> None:
    known = [(x, y) for x, y in zip(xs, ys, strict=True) if x is not None and y is not None]
    if known:
        marker = "o" if len(known) <= 20 else None
        axis.plot(*zip(*known, strict=True), style, marker=marker, markersize=3, label=label, color=colour)


def _within(points: Sequence[Report], name: str) -> list[float]:
    """Values less the mean of their pool."""
    pools: dict[str, list[float]] = {}
    for point in points:
        pools.setdefault(point["pool"], []).append(point[name])
    means = {pool: sum(values) / len(values) for pool, values in pools.items()}
    return [point[name] - means[point["pool"]] for point in points]


FIGURES: dict[str, Draw] = {
    "curves": _curves,
    "by_turn": _by_turn,
    "control": _control,
    "credit": _credit,
    "correlation": _correlation,
    "faithfulness": _faithfulness,
    "repetition": _repetition,
    "collapse": _collapse,
}
