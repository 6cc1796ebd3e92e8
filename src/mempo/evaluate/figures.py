"""The figures of a comparison, each as PNG and SVG, drawn without a display: quality against objectives, peak tokens
against objectives, tokens against quality.

Labels are drawn as plain text: `$` and backslashes in them are not formulas.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mempo.evaluate.compare import Report, Row
from mempo.evaluate.plots import COLOURS, finish, new_figure, save_figure

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
WIDTH_INCHES, HEIGHT_INCHES = 8.0, 4.2


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
        for n, label in enumerate(_labels(report)):
            rows = _rows(report, label)
            known = [(_mean(row, name), _mean(row, "em"), row.objectives) for row in rows]
            points = [(x, 100 * y, k) for x, y, k in known if x is not None and y is not None]
            if points:
                xs, ys, ks = zip(*points, strict=True)
                axis.plot(xs, ys, "-", marker=MARKERS[n % len(MARKERS)], color=_colour(n), label=label, alpha=0.9)
                for x, y, k in zip(xs, ys, ks, strict=True):
                    axis.annotate(str(k), (x, y), textcoords="offset points", xytext=(4, 4), fontsize=7)
                drawn = True
        axis.set_xlim(left=0)
        axis.set_ylim(-3, 106)
        finish(axis, f"{'total' if name == 'total_tokens' else 'peak context'} tokens", "exact match (%)")
    figure.suptitle("numbers at the points: objectives", fontsize=8, color="#333333")
    return drawn


def _against_objectives(axis: Axes, report: Report, name: str, scale: float) -> bool:
    drawn = False
    for n, label in enumerate(_labels(report)):
        rows = [row for row in _rows(report, label) if _mean(row, name) is not None]
        if not rows:
            continue
        ks = [row.objectives for row in rows]
        means = [scale * float(row.estimates[name].mean or 0) for row in rows]
        axis.plot(ks, means, "-", marker=MARKERS[n % len(MARKERS)], markersize=4, color=_colour(n), label=label)
        spans = [(k, row.estimates[name]) for k, row in zip(ks, rows, strict=True)]
        for k, estimate in spans:
            if estimate.low is not None and estimate.high is not None:
                axis.vlines(k, scale * estimate.low, scale * estimate.high, color=_colour(n), alpha=0.45, linewidth=1.5)
        drawn = True
    axis.set_xticks(sorted({row.objectives for row in report.rows}))
    return drawn


def _labels(report: Report) -> list[str]:
    return list(dict.fromkeys(row.label for row in report.rows))


def _rows(report: Report, label: str) -> list[Row]:
    return [row for row in report.rows if row.label == label]


def _mean(row: Row, name: str) -> float | None:
    estimate = row.estimates.get(name)
    return None if estimate is None else estimate.mean


def _colour(n: int) -> str:
    return COLOURS[n % len(COLOURS)]


FIGURES: dict[str, Callable[[Figure, Report], bool]] = {
    "quality": _quality,
    "peak": _peak,
    "tokens_quality": _tokens_quality,
}
