"""The tables of a study, as rows of text for the terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from mempo.evaluate.grid import Grid
from mempo.evaluate.stats import Comparison
from mempo.study.compare import START, Row, Section, Spread

WHAT = (
    "Means over seeds, (least–most) beside them; EM is greedy on held-out questions, @k of those with k objectives. "
    "Differences are paired by seed, in points of a hundred, with a 95 % interval (Student's t) and the p of a "
    "sign-flip test; n is the number of pairs. right: share of objectives answered at whatever place in sampled "
    "rollouts; first, last: over the first and the last fifth of training."
)
OVER_SEEDS = (
    "Intervals are over seeds, so they hold the noise of training: data, SFT start and RL. An interval over questions, "
    "such as mempo compare prints for two runs, holds none of it."
)
OVER_RL_SEEDS = (
    "Intervals are over RL seeds on one start: they hold the noise of RL, and none of that of data and start. An "
    "interval over questions, such as mempo compare prints for two runs, holds neither."
)
OF_ONE = (
    "EM@k: exact match (%) on {questions} held-out questions of k objectives each, greedy. First and last fifth: exact "
    "match (%) of the rollouts sampled while training on {trained}, over the first and the last fifth of the steps; "
    "half right at step: the first step with half of its rollouts right; format kept (%): of the last fifth."
)
ONE_RUN = (
    "This is one seed, one run of each arm: it shows what can happen, not how often. More seeds in the file, or --full "
    "where it has them, tell that."
)
FEW = 5


def remarks(sections: Sequence[Section]) -> list[str]:
    """What must be said beside the numbers."""
    single = [section for section in sections if section.single]
    several = [section for section in sections if not section.single]
    said = [*dict.fromkeys(what_one_shows(section) for section in single), *([ONE_RUN] if single else [])]
    units = {section.unit for section in several}
    said += [WHAT] if several else []
    said += [text for unit, text in (("seeds", OVER_SEEDS), ("RL seeds", OVER_RL_SEEDS)) if unit in units]
    fewest = min((row.runs for section in several for row in section.rows if row.against), default=FEW)
    if fewest < FEW:
        said.append(f"Fewer than {FEW} pairs claim nothing: with n pairs no p of a sign-flip test is below 2 / 2^n.")
    return said


def what_one_shows(section: Section) -> str:
    """The columns of a table of single runs in words."""
    fewest, most = section.questions or (0, 0)
    trained = " or ".join(map(str, section.trained))
    return OF_ONE.format(
        questions=most if fewest == most else f"{fewest} to {most}",
        trained=f"questions of {trained} objectives" if trained else "the training questions",
    )


def in_words(section: Section, baseline: str) -> str:
    """What single runs show, as sentences; empty where there is nothing to set side by side."""
    arms = {row.arm: row for row in section.rows}
    if not section.single or baseline not in arms or len(arms) < 2:
        return ""
    said = []
    for k in section.trained:
        ends = [
            f"{name} {_percent(row.by_metric[f'em@{k}'].mean)}"
            for name, row in arms.items()
            if f"em@{k}" in row.by_metric
        ]
        if ends:
            said.append(f"Questions of {k} objectives, which RL was trained on, are answered right: {', '.join(ends)}.")
    halves = [f"{name} {_step(row.by_metric['half'].mean)}" for name, row in arms.items() if name != START]
    said.append(f"Half of the rollouts of a training step were right: {', '.join(halves)}.")
    return " ".join(said)


def _step(value: float | None) -> str:
    return "never" if value is None else f"first at step {value:.0f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.0f} %"


def levels(section: Section) -> list[list[str]]:
    """Header and rows: every arm with its metrics."""
    counted = [] if section.single else ["n"]
    header = ["arm", *counted, *(metric.header for metric in section.metrics), "CPU s"]
    return [header, *(_level(section, row) for row in section.rows)]


def differences(section: Section, baseline: str) -> list[list[str]]:
    """Header and rows: every arm against the baseline; empty where there is nothing to compare."""
    rows = [row for row in section.rows if any(found.questions for found in row.against.values())]
    if section.single:
        return []
    if not rows:
        return []
    header = [f"against {baseline}", "n", *(metric.header for metric in section.compared)]
    return [header, *(_difference(section, row) for row in rows)]


def markdown(name: str, sections: Sequence[Section], baseline: str, figures: Sequence[str] = ()) -> str:
    """The page `tables.md`."""
    lines = [f"# Study {name}", ""]
    lines += [f"{text}\n" for text in remarks(sections)] or ["No run is finished yet."]
    for section in sections:
        lines += [f"## From start {section.start}", ""]
        for table in (levels(section), differences(section, baseline)):
            lines += [_grid(table).markdown()] if table else []
        lines += [f"{text}\n"] if (text := in_words(section, baseline)) else []
    lines += [f"![{file}]({file})" for file in figures if file.endswith(".png")]
    return "\n".join(lines).rstrip() + "\n"


def on_screen(sections: Sequence[Section], baseline: str) -> RenderableType:
    parts: list[RenderableType] = []
    for section in sections:
        parts.append(_grid(levels(section), f"from start {section.start}"))
        if rows := differences(section, baseline):
            parts += [Text(), _grid(rows)]
        parts += [Text(f"{text}\n")] if (text := in_words(section, baseline)) else []
    return Group(*parts, *(Text(text) for text in remarks(sections)))


def _grid(rows: Sequence[Sequence[str]], title: str = "") -> Grid:
    return Grid(rows[0], rows[1:], words=(rows[0][0],), title=title)


def _level(section: Section, row: Row) -> list[str]:
    units = max((spread.units for spread in row.by_metric.values()), default=0)
    cells = [_spread(row.by_metric[metric.name], metric.percent) for metric in section.metrics]
    counted = [] if section.single else [str(units)]
    return [row.arm, *counted, *cells, "–" if row.cpu_s is None else f"{row.cpu_s:.0f}"]


def _spread(found: Spread, percent: bool = True) -> str:
    if found.mean is None or found.low is None or found.high is None:
        return "–"
    if not percent:
        return f"{found.mean:g}"
    text = f"{100 * found.mean:.1f}"
    return text if found.units < 2 else f"{text} ({100 * found.low:.0f}–{100 * found.high:.0f})"


def _difference(section: Section, row: Row) -> list[str]:
    pairs = max(found.questions for found in row.against.values())
    return [row.arm, str(pairs), *(_compared(row.against[metric.name]) for metric in section.compared)]


def _compared(found: Comparison) -> str:
    if found.difference is None:
        return "–"
    text = f"{100 * found.difference:+.1f}"
    if found.low is not None and found.high is not None:
        text += f" [{100 * found.low:+.1f}, {100 * found.high:+.1f}]"
    return text if found.p_value is None else f"{text} p {found.p_value:.2g}"
