"""The figures of a comparison, each as PNG and SVG, drawn without a display: quality against objectives, peak tokens
against objectives, tokens against quality.

Labels are drawn as plain text: `$` and backslashes in them are not formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mempo.evaluate.compare import Report, Row
from mempo.evaluate.plots import COLOURS, finish, new_figure, save_figure

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
WIDTH_INCHES, HEIGHT_INCHES = 8.0, 4.2
Point = tuple[float, float, Row]


def save_figures(report: Report, folder: Path) -> list[str]:
    """Draw every figure that has something to show; names of the files made."""
    made = []
    for name, draw in FIGURES.items():
        with new_figure(WIDTH_INCHES, HEIGHT_INCHES) as figure:
            if draw(figure, report):
                made += save_figure(figure, folder, name).values()
    return made


def _quality(figure: Figure, report: Report) -> bool:
    left, right = figure.subplots(1, 2, sharey=True)
    drawn = [_against_objectives(axis, report, name, 100) for axis, name in ((left, "em"), (right, "f1"))]
    for axis, label in ((left, "exact match (%)"), (right, "F1 (%)")):
        axis.set_ylim(-3, 103)
        finish(axis, "objectives", label)
    return any(drawn)


def _peak(figure: Figure, report: Report) -> bool:
    axis = figure.subplots()
    drawn = _against_objectives(axis, report, "peak_context_tokens", 1)
    axis.set_ylim(bottom=0)
    finish(axis, "objectives", "peak context (tokens)")
    return drawn


def _tokens_quality(figure: Figure, report: Report) -> bool:
    left, right = figure.subplots(1, 2, sharey=True)
    drawn = False
    for axis, name in ((left, "total_tokens"), (right, "peak_context_tokens")):
        for _, points in _curves(axis, report, name, "em", 100):
            for x, y, row in points:
                axis.annotate(str(row.objectives), (x, y), textcoords="offset points", xytext=(4, 4), fontsize=7)
            drawn = True
        axis.set_xlim(left=0)
        axis.set_ylim(-3, 106)
        finish(axis, f"{'total' if name == 'total_tokens' else 'peak context'} tokens", "exact match (%)")
    figure.suptitle("numbers at the points: objectives", fontsize=8, color="#333333")
    return drawn


def _against_objectives(axis: Axes, report: Report, name: str, scale: float) -> bool:
    drawn = False
    for colour, points in _curves(axis, report, "objectives", name, scale):
        for k, _, row in points:
            low, high = row.estimates[name].low, row.estimates[name].high
            if low is not None and high is not None:
                axis.vlines(k, scale * low, scale * high, color=colour, alpha=0.45, linewidth=1.5)
        drawn = True
    axis.set_xticks(sorted({row.objectives for row in report.rows}))
    return drawn


def _curves(axis: Axes, report: Report, x: str, y: str, scale: float) -> Iterator[tuple[str, list[Point]]]:
    """Draw a curve for each agent of which both are known, and tell its colour and points."""
    for n, label in enumerate(dict.fromkeys(row.label for row in report.rows)):
        known = [(_value(row, x), _value(row, y), row) for row in report.rows if row.label == label]
        points = [(a, scale * b, row) for a, b, row in known if a is not None and b is not None]
        if points:
            colour, marker = COLOURS[n % len(COLOURS)], MARKERS[n % len(MARKERS)]
            xs, ys, _ = zip(*points, strict=True)
            axis.plot(xs, ys, "-", marker=marker, markersize=4, color=colour, label=label)
            yield colour, points


def _value(row: Row, name: str) -> float | None:
    return row.objectives if name == "objectives" else row.estimates[name].mean if name in row.estimates else None


FIGURES: dict[str, Callable[[Figure, Report], bool]] = {
    "quality": _quality,
    "peak": _peak,
    "tokens_quality": _tokens_quality,
}
