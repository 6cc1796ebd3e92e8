"""`mempo eval` killed by the system at random moments and given again: the folder of a run that was left alone."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from mempo.engine.model import save_policy
from mempo.storage.files import read_lines
from tests.evaluate.openai_stub import VLLM, Stub, stub_server
from tests.tiny import make_tokenizer, tiny_llama

TOKENIZER = make_tokenizer()
AGENTS = ("memory", "react")


def said(prompt: str) -> str:
    """As a greedy model: what it says depends on the prompt alone."""
    digest = hashlib.sha256(prompt.encode()).digest()
    note = f"<mem>n{digest[2]}</mem>" if digest[1] % 3 else ""
    action = "<answer>Paris</answer>" if digest[0] % 3 == 0 else f"<search>city {digest[0] % 5}</search>"
    return f"{note}<think>t</think>{action}"


def files(folder: Path) -> None:
    rows = [
        {"id": f"q{i}", "question": f"question {i}?", "answer": ["Paris"], "data_source": f"s{i % 2}"}
        for i in range(40)
    ]
    (folder / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    (folder / "corpus.jsonl").write_text(
        '{"title": "city 1", "text": "a"}\n{"title": "city 2", "text": "b"}\n', "utf-8"
    )
    (folder / "mine.yaml").write_text(
        "data: {test: test.jsonl, corpus: corpus.jsonl}\nprompt: {template: plain}\n"
        "limits: {max_context_tokens: 500, max_turns: 4, max_turn_tokens: 40, min_turn_tokens: 8}\n"
        "evaluate: {temperature: 0, max_in_flight: 4}\n",
        "utf-8",
    )


def lines(out: Path) -> dict[str, list[dict[str, Any]]]:
    """What was saved of each agent, without the times it took and the places in the file of tokens."""
    dropped = ("seconds", "question_ids", "turns")
    return {
        name: sorted(
            ({k: v for k, v in row.items() if k not in dropped} for row in read_lines(out / f"rollouts/{name}.jsonl")),
            key=lambda row: (row["question_id"], row["rollout"]),
        )
        for name in AGENTS
    }


def rollouts_in(out: Path) -> int:
    return sum(len(read_lines(out / "rollouts" / f"{name}.jsonl")) for name in AGENTS)


@pytest.mark.slow
def test_killed_three_times_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    files(tmp_path)
    save_policy(tiny_llama(TOKENIZER), tmp_path / "model")
    rng = random.Random(0)
    with stub_server(Stub(TOKENIZER, VLLM, say=said, delay_s=0.02)) as stub:
        command = [sys.executable, "-c", "import mempo.cli.main; mempo.cli.main.main()", "eval", "--server", stub.url]
        command += ["--tokenizer", "model", "--config", "mine.yaml", "--agents", ",".join(AGENTS), "--samples", "2"]

        def start(out: str) -> subprocess.Popen[str]:
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
            return subprocess.Popen([*command, "--out", out], cwd=tmp_path, env={**os.environ}, **pipes)

        killed_at = []
        for least in (1, 40, 90):
            process = start("killed")
            while rollouts_in(tmp_path / "killed") < least and process.poll() is None:
                time.sleep(0.005)
            time.sleep(rng.uniform(0, 0.2))
            process.send_signal(signal.SIGKILL)
            process.communicate()
            killed_at.append(rollouts_in(tmp_path / "killed"))
        last, straight = start("killed"), start("straight")
        for process in (last, straight):
            told = process.communicate(timeout=300)[0]
            assert process.returncode == 0, told
    assert 0 < killed_at[0] < killed_at[1] < killed_at[2] < 160, "each was killed on its way"
    assert [len(found) for found in lines(tmp_path / "killed").values()] == [80, 80]
    assert lines(tmp_path / "killed") == lines(tmp_path / "straight")
    metrics = [json.loads((tmp_path / out / "evaluation.json").read_text("utf-8")) for out in ("killed", "straight")]
    for found in metrics:
        for by_k in found.values():
            by_k["1"].pop("seconds")
    assert metrics[0] == metrics[1]
    assert 0 < metrics[0]["memory"]["1"]["em"] < 1
    assert set(metrics[0]["memory"]["1"]["by"]["data_source"]) == {"s0", "s1"}
    record = json.loads((tmp_path / "killed/server.json").read_text("utf-8"))
    assert record["capabilities"]["stop_field"] == "stop_reason"
