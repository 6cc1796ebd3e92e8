"""The map of docs/results.md from the files in docs/results/: prints mean exact match by arm with paired differences,
and draws what each arm gains over the outcome alone, a dot for each seed (docs/images/memory-signal.png)."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from mempo.study.compare import compare_runs

ROOT = Path(__file__).parents[1]
STARTS = {
    "fluent-4": "outcome silent\n(fluent-4)",
    "independent-6": "outcome nearly silent\n(independent-6)",
    "independent-4": "outcome speaks\n(independent-4)",
    "all-or-nothing": "outcome speaks loudly\n(all-or-nothing)",
}
ARMS = {"recommended": "#0072B2", "constant": "#E69F00"}
TRAINED = {
    "fluent-4": ("2", "3", "4"),
    "independent-6": ("2", "4"),
    "independent-4": ("2", "4"),
    "all-or-nothing": ("2", "3", "4"),
}
"""Numbers of objectives whose mean exact match is compared."""


Means = dict[tuple[str, str], dict[int, float]]


def means(*names: str) -> Means:
    """`{(start, arm): {seed: mean exact match, in points of a hundred}}` of the runs in these files."""
    found: Means = defaultdict(dict)
    for name in names:
        for line in (ROOT / "docs" / "results" / f"{name}.jsonl").read_text("utf-8").splitlines():
            run = json.loads(line)
            if run["arm"] and run["start"] in STARTS:
                ems = [run["evaluation"][k]["em"] for k in TRAINED[run["start"]]]
                found[run["start"], run["arm"]][run["seed"]] = 100 * statistics.mean(ems)
    return found


def table(found: Means, baseline: str) -> str:
    """Arms that have as many seeds as the baseline from the same start, a line each."""
    lines = []
    for (start, arm), by_seed in found.items():
        against = found[start, baseline]
        if by_seed.keys() != against.keys():
            continue
        values = [by_seed[seed] for seed in sorted(by_seed)]
        compared = compare_runs(*({str(seed): of[seed] for seed in of} for of in (against, by_seed)))
        seeds = ", ".join(f"{value:.0f}" for value in values)
        span = f"{compared.difference:+.1f} [{compared.low:+.1f}, {compared.high:+.1f}]"
        lines.append(f"{start:14}  {arm:14}  {seeds:22}  {statistics.mean(values):5.1f}  {span} against {baseline}")
    return "\n".join(lines)


def differences(found: Means) -> dict[tuple[str, str], list[float]]:
    """`{(start, arm): [seeds]}`: points of mean exact match over the outcome alone from the same start."""
    return {
        (start, arm): [values[seed] - found[start, "outcome"][seed] for seed in sorted(values)]
        for (start, arm), values in found.items()
    }


def main() -> None:
    found = means("memory-signal")
    print(table(found, "outcome"))
    controls = means("memory-signal", "controls-5-seeds")
    print(table({key: of for key, of in controls.items() if key[0] == "fluent-4"}, "recommended"))
    every = differences(found)
    figure, axes = plt.subplots(figsize=(8, 3.4))
    for number, start in enumerate(STARTS):
        for shift, (arm, color) in zip((-0.13, 0.13), ARMS.items(), strict=True):
            values = every[start, arm]
            places = [number + shift + 0.02 * (i - len(values) / 2) for i in range(len(values))]
            axes.plot(places, values, "o", color=color, alpha=0.6, markersize=5, label=arm if number == 0 else None)
            ends = [number + shift - 0.08, number + shift + 0.08]
            axes.plot(ends, [statistics.mean(values)] * 2, color=color, lw=2.5)
    axes.axhline(0, color="#666666", lw=1)
    axes.set_xticks(range(len(STARTS)), STARTS.values(), fontsize=9)
    axes.set_ylabel("points of exact match\nover the outcome alone")
    axes.legend(frameon=False, loc="upper right")
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(ROOT / "docs/images/memory-signal.png", dpi=120)


if __name__ == "__main__":
    main()
