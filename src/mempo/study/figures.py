"""The figures of a study: curves of training and exact match at the end, arm by arm, for every start."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from mempo.evaluate.plots import COLOURS, finish, new_figure, save_figure
from mempo.study.compare import Section
from mempo.study.plan import Task
from mempo.study.record import Record

WIDTH_INCHES, ROW_INCHES = 12.0, 3.2
_CURVES = (
    ("em", "all objectives right, sampled (%)"),
    ("objectives_right", "objectives right, sampled (%)"),
    ("format_ok", "format kept, sampled (%)"),
)

Done = Sequence[tuple[Task, Record]]


def save_figures(done: Done, sections: Sequence[Section], folder: Path) -> list[str]:
    """Draw `curves` and `exact-match`, each as PNG and SVG; names of the files made."""
    made: list[str] = []
    if not sections:
        return made
    arms = list(dict.fromkeys(task.arm for task, _ in done if task.arm is not None))
    colours = {arm: COLOURS[i % len(COLOURS)] for i, arm in enumerate(arms)}
    height = ROW_INCHES * len(sections)
    with new_figure(WIDTH_INCHES, height) as figure:
        for axes, section in zip(figure.subplots(len(sections), len(_CURVES), squeeze=False), sections, strict=True):
            for axis, (name, label) in zip(axes, _CURVES, strict=True):
                for arm in arms:
                    _draw_curve(
                        axis, [r for t, r in done if (t.start, t.arm) == (section.start, arm)], name, arm, colours
                    )
                axis.set_ylim(-3, 103)
                axis.xaxis.get_major_locator().set_params(integer=True)
                axis.set_title(f"from start {section.start}", loc="left", fontsize=9)
                finish(axis, "RL step", label)
        made += save_figure(figure, folder, "curves").values()
    with new_figure(WIDTH_INCHES, height) as figure:
        for axis, section in zip(figure.subplots(len(sections), 1, squeeze=False)[:, 0], sections, strict=True):
            _draw_bars(axis, section, [r for r in done if r[0].start == section.start], colours)
        made += save_figure(figure, folder, "exact-match").values()
    return made


def points(record: Record, name: str) -> dict[int, float]:
    """`{step: value}` of a curve of a run."""
    if name == "objectives_right":
        return {int(step): value for step, value in record.get(name, {}).items()}
    curve = record["curve"]
    values = curve.get(name, [None] * len(curve["step"]))
    return {step: value for step, value in zip(curve["step"], values, strict=True) if value is not None}


def _draw_curve(axis: Axes, records: Sequence[Record], name: str, arm: str, colours: dict[str, str]) -> None:
    """The mean over runs, and between least and most a band, on the steps that all of them have."""
    found = [points(record, name) for record in records]
    steps = sorted(set.intersection(*(set(one) for one in found))) if found else []
    if not steps:
        return
    values = 100 * np.array([[one[step] for step in steps] for one in found])
    axis.plot(steps, values.mean(axis=0), color=colours[arm], label=f"{arm} (n = {len(found)})", linewidth=1.6)
    if len(found) > 1:
        axis.fill_between(steps, values.min(axis=0), values.max(axis=0), color=colours[arm], alpha=0.12, linewidth=0)


def _draw_bars(axis: Axes, section: Section, done: Done, colours: dict[str, str]) -> None:
    """A group of bars for each number of objectives, a bar an arm, a dot each run."""
    metrics = [metric for metric in section.compared if "@" in metric.name]
    rows = [row for row in section.rows if row.arm in colours]
    width = 0.8 / max(len(rows), 1)
    for i, row in enumerate(rows):
        places = np.arange(len(metrics)) + (i - (len(rows) - 1) / 2) * width
        means = [100 * (row.by_metric[m.name].mean or 0.0) for m in metrics]
        axis.bar(places, means, width * 0.92, color=colours[row.arm], alpha=0.55, label=row.arm)
        for place, metric in zip(places, metrics, strict=True):
            values = [metric.value(record) for task, record in done if task.arm == row.arm]
            known = [100 * value for value in values if value is not None]
            axis.plot([place] * len(known), known, ".", color=colours[row.arm], markersize=5)
    axis.set_xticks(range(len(metrics)), [metric.header for metric in metrics])
    axis.set_ylim(0, 103)
    axis.set_title(f"from start {section.start}", loc="left", fontsize=9)
    finish(axis, "", "exact match (%)")
