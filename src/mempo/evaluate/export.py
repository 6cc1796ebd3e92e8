"""The report of a comparison as Markdown, CSV and LaTeX.

Labels come from names of folders and agents, so every format escapes what would mean something in it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence

from mempo.errors import counted
from mempo.evaluate.compare import ON_SCREEN, Column, Pair, Report, Row, interval, part_of, shown
from mempo.evaluate.grid import Grid, markdown_text

_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "–": "--",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
}
WITH_INTERVAL = ("em", "f1", "judge")


def header(report: Report, columns: Sequence[Column]) -> list[str]:
    return ["objectives", "agent", "n", *(column.header for column in columns), *pass_header(report), "errors"]


def pass_header(report: Report) -> list[str]:
    """`pass@3`, `pass@k` where rows differ in k, or nothing where no row was asked for several samples."""
    samples = {row.samples for row in report.rows}
    if max(samples, default=1) < 2:
        return []
    return [f"pass@{samples.pop()}"] if len(samples) == 1 else ["pass@k"]


def pass_cell(report: Report, row: Row) -> list[str]:
    """Pass@k with its k where rows differ in it, and with the number of its questions where that is not the row's n."""
    head = pass_header(report)
    if not head:
        return []
    if row.samples < 2:
        return [shown(None, "percent")]
    k = f"k={row.samples}: " if head == ["pass@k"] else ""
    on = "" if row.pass_questions == row.questions else f" (n {part_of(row.pass_questions, row.asked)})"
    return [f"{k}{shown(row.pass_k, 'percent')}{on}"]


def cells(report: Report, row: Row, columns: Sequence[Column]) -> list[str]:
    """One line of a table for people: means, with the interval where it matters."""
    found = []
    for column in columns:
        estimate = row.estimates[column.name]
        text = shown(estimate.mean, column.form)
        if column.name in WITH_INTERVAL and (span := interval(estimate, column.form)):
            text = f"{text} [{span.replace('%', '')}]"
        found.append(text)
    return [str(row.objectives), row.label, row.n, *found, *pass_cell(report, row), str(row.errors)]


def pair_texts(report: Report) -> list[str]:
    """The comparisons in words: one line for two agents at one number of objectives, differences in points of a
    hundred."""
    together: dict[tuple[int, str, str], list[Pair]] = {}
    for pair in report.pairs:
        together.setdefault((pair.objectives, pair.first, pair.second), []).append(pair)
    texts = []
    for (k, first, second), pairs in together.items():
        if questions := pairs[0].found.questions:
            differences = "; ".join(map(_difference, pairs))
            texts.append(f"k = {k}: {second} − {first}: {differences} ({counted(questions, 'question')})")
    return texts


def _difference(pair: Pair) -> str:
    found, name = pair.found, {"em": "EM", "f1": "F1"}.get(pair.metric, pair.metric)
    span = "" if found.low is None or found.high is None else f" [{100 * found.low:+.1f}, {100 * found.high:+.1f}]"
    p = "" if found.p_value is None else ", p < 0.001" if found.p_value < 0.001 else f", p = {found.p_value:.2g}"
    return f"{name} {100 * (found.difference or 0):+.1f}{span}{p}"


def markdown(report: Report) -> str:
    columns = report.columns
    table = Grid(header(report, columns), [cells(report, row, columns) for row in report.rows], ("agent",)).markdown()
    notes = [f"- {markdown_text(text)}\n" for text in (*pair_texts(report), *report.remarks)]
    return "".join([table, *(["\n", *notes] if notes else [])])


def csv_table(report: Report) -> str:
    """Every number in full: means, both ends of the interval, counts."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = [n for c in report.columns for n in (c.name, f"{c.name}_low", f"{c.name}_high")]
    counts = ["questions", "asked", "rollouts", "errors", "samples", "pass_k", "pass_questions"]
    writer.writerow(["objectives", "agent", *counts, *names])
    for row in report.rows:
        estimates = [row.estimates[c.name] for c in report.columns]
        numbers = [value for e in estimates for value in (e.mean, e.low, e.high)]
        # A label that begins like a formula would be one in a spreadsheet.
        label = f"'{row.label}" if row.label[:1] in "=+-@\t" else row.label
        head = [row.objectives, label, row.questions, row.asked, row.rollouts, row.errors, row.samples, row.pass_k]
        head.append(row.pass_questions if row.samples > 1 else None)
        writer.writerow(["" if value is None else value for value in (*head, *numbers)])
    return out.getvalue()


def latex(report: Report) -> str:
    """A `tabular` of booktabs."""
    columns = [column for column in report.columns if column.name in ON_SCREEN]
    rows = [header(report, columns), *(cells(report, row, columns) for row in report.rows)]
    head, *body = [" & ".join(map(_latex, row)) + r" \\" for row in rows]
    lines = []
    for i, (row, text) in enumerate(zip(report.rows, body, strict=True)):
        if i and row.objectives != report.rows[i - 1].objectives:
            lines.append(r"\midrule")
        lines.append(text)
    spec = "rl" + "r" * (len(rows[0]) - 2)
    lines = [rf"\begin{{tabular}}{{{spec}}}", r"\toprule", head, r"\midrule", *lines, r"\bottomrule", r"\end{tabular}"]
    return "\n".join(lines) + "\n"


FORMATS: dict[str, tuple[str, Callable[[Report], str]]] = {
    "markdown": ("md", markdown),
    "csv": ("csv", csv_table),
    "latex": ("tex", latex),
}
"""`{format: (ending of its file, writer)}`."""


def _latex(text: str) -> str:
    return "".join(_LATEX.get(char, char) for char in " ".join(text.split()))
