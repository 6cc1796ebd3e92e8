"""The curves of runs as figures for papers: PNG and SVG, one for each question of `CHARTS`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mempo.errors import UserError
from mempo.evaluate.plots import COLOURS, curve, new_figure, save_figure
from mempo.storage.outputs import output_files
from mempo.view.curves import curves
from mempo.view.folder import open_folders

_COLUMNS = 3
_WIDTH_INCHES, _HEIGHT_INCHES = 3.2, 2.2
"""Of one chart."""


def save_curves(runs: Sequence[Path], out: Path) -> list[str]:
    """Draw what `mempo view` draws of these runs, with healthy ranges; the names of the files in `out`.

    Raises:
        UserError: a folder that is no run, runs that have no metrics, files in `out` that are others'.
    """
    found = curves(open_folders(runs))
    if not found["sections"]:
        raise UserError(f"{', '.join(map(str, runs))}: there are no metrics to draw (metrics.jsonl)")
    made: list[str] = []
    with output_files(out, "figures", "mempo view --figures", replaces=True) as folder:
        for section in found["sections"]:
            name = re.sub(r"\W+", "-", section["title"].lower()).strip("-")
            made += _draw(section["charts"], found["runs"], folder, name).values()
    return made


def _draw(charts: Sequence[dict[str, Any]], runs: Sequence[str], folder: Path, name: str) -> dict[str, str]:
    columns = min(_COLUMNS, len(charts))
    rows = -(-len(charts) // columns)
    with new_figure(_WIDTH_INCHES * columns, _HEIGHT_INCHES * rows + 0.3) as figure:
        for place, chart in enumerate(charts, start=1):
            axis = figure.add_subplot(rows, columns, place)
            for series in chart["series"]:
                colour = COLOURS[series["run"] % len(COLOURS)]
                curve(axis, series["x"], series["y"], str(runs[int(series["run"])]), colour)
            low, high = chart["low"], chart["high"]
            if low is not None and high is not None and high > low:
                axis.axhspan(low, high, color="#009e73", alpha=0.08, linewidth=0)
            axis.set_title(chart["title"], loc="left", fontsize=9)
            axis.set_xlabel("step")
        if len(runs) > 1:
            drawn = [zip(*axis.get_legend_handles_labels(), strict=True) for axis in figure.axes]
            lines = {label: line for pairs in drawn for line, label in pairs}
            figure.legend(lines.values(), lines.keys(), loc="outside upper left", ncols=3, frameon=False, fontsize=8)
        return save_figure(figure, folder, name)
