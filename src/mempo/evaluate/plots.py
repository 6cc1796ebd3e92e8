"""How figures look and how they are saved, for every report that draws some. Drawn without a display.

Texts are drawn as they are: `$` and backslashes in them are not formulas.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mempo.storage.files import write_atomic

STYLE: dict[Any, Any] = {
    "text.parse_math": False,
    "svg.hashsalt": "mempo",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "font.size": 9,
}
DPI = 130
KINDS = ("png", "svg")
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")
"""Distinct for color-blind readers too."""
GREY = COLOURS[-1]


@contextmanager
def new_figure(width_inches: float, height_inches: float) -> Iterator[Figure]:
    """A figure in our style, for drawing and saving inside the block."""
    with rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # a name in a script without a font
        yield Figure(figsize=(width_inches, height_inches), dpi=DPI, layout="constrained")


def save_figure(figure: Figure, folder: Path, name: str) -> dict[str, str]:
    """Write the figure as PNG and SVG, the same bytes every time; `{kind: file name}`."""
    files = {kind: f"{name}.{kind}" for kind in KINDS}
    for kind, file in files.items():
        data = io.BytesIO()
        figure.savefig(data, format=kind, metadata={"Date": None} if kind == "svg" else None)
        write_atomic(folder / file, data.getvalue())
    return files


def finish(axis: Axes, x_label: str, y_label: str) -> None:
    """Label an axis, with a legend where anything has a label."""
    axis.set_xlabel(x_label)
    axis.set_ylabel(y_label)
    if axis.get_legend_handles_labels()[0]:
        axis.legend(frameon=False, fontsize=8)


def curve(axis: Axes, xs: Sequence[Any], ys: Sequence[float | None], label: str, colour: str, style: str = "-") -> None:
    """A line through the points that are known, with a marker on each where they are few."""
    known = [(x, y) for x, y in zip(xs, ys, strict=True) if x is not None and y is not None]
    if known:
        marker = "o" if len(known) <= 20 else None
        axis.plot(*zip(*known, strict=True), style, marker=marker, markersize=3, label=label, color=colour)
