"""`diagnosis.md`: the table, the figures with their captions, and a few notes, in one page."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from mempo.diagnose.table import printable, rollout_counts

MARKS = {"ok": "ok", "look": "**look**"}


def page(report: Mapping[str, Any]) -> str:
    """Markdown. Outside text stands in code blocks, which it cannot close."""
    rollouts = report["rollouts"]
    lines = [
        "# Diagnosis",
        "",
        f"{rollout_counts(rollouts)}, from {plain(rollouts['file'])} of {plain(report['run'])}.",
        "",
        *(f"- {plain(remark)}" for remark in report["remarks"]),
        "",
        "| measure | value | healthy | | what it is; what to change |",
        "|---|---|---|---|---|",
    ]
    for check in report["checks"]:
        cells = (check["label"], check["shown"], check["healthy"], MARKS.get(check["verdict"], "–"), _sentence(check))
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    for figure in report["figures"]:
        lines += ["", f"## {figure['title']}", "", f"![{figure['title']}]({figure['png']})", "", figure["caption"]]
    if report["examples"]:
        lines += ["", "## Notes to read"]
    for example in report["examples"]:
        lines += ["", f"### {example['kind'][:1].upper()}{example['kind'][1:]}", ""]
        numbers = [f"turn {example['turn']}"]
        numbers += [f"r {example['r']:.3g}"] if example["r"] is not None else []
        numbers += [f"credit {example['advantage']:+.2f}"] if example["advantage"] is not None else []
        lines += [", ".join(numbers), ""]
        parts = [("question", example["question"]), ("note before", example["before"]), ("note", example["note"])]
        parts += [("no observation held", example["detail"])] if example["detail"] else []
        lines += fenced([f"{name}: {text}" for name, text in parts if text is not None])
    return "\n".join(lines) + "\n"


def _sentence(check: Mapping[str, Any]) -> str:
    return check["meaning"] if check["change"] is None else f"{check['meaning']}. **Change:** {check['change']}"


def plain(text: str) -> str:
    """Outside text within a line of Markdown."""
    return re.sub(r"([\\`*_{}\[\]<>#|!$~])", r"\\\1", printable(text))


def fenced(texts: Sequence[str]) -> list[str]:
    """A code block with a fence longer than any run of backticks in it."""
    lines = [printable(line) for text in texts for line in text.split("\n")]
    longest = max((len(run) for line in lines for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return [fence + "text", *lines, fence]
