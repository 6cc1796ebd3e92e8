"""TRL's GRPOTrainer, one step at a time, in a process and an environment of its own."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
VENV = HERE / ".venv-trl"


def environment() -> Path:
    """The Python of the environment, made where it is missing; the releases are those of this one."""
    python = VENV / "bin" / "python"
    if not (VENV / "ready").is_file():
        print(f"making {VENV} for TRL, once", file=sys.stderr, flush=True)
        releases = [f"{name}=={importlib.metadata.version(name)}" for name in ("torch", "transformers")]
        commands = [
            [sys.executable, "-m", "venv", str(VENV)],
            [str(python), "-m", "pip", "install", "-q", releases[0].split("+")[0]],
            [str(python), "-m", "pip", "install", "-q", "trl", releases[1]],
        ]
        for command in commands:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(f"TRL cannot be installed: {' '.join(command)}\n{done.stderr.strip()[-800:]}")
        (VENV / "ready").touch()
    return python


class TrlProcess:
    """`step()` runs one optimizer step of GRPOTrainer and returns its `seconds` and the `tokens` it generated."""

    def __init__(self, policy: Any, prompts: Sequence[str], group: int, completion: int, steps: int, lr: float) -> None:
        self._folder = tempfile.TemporaryDirectory()
        model = Path(self._folder.name) / "model"
        policy.model.save_pretrained(model)
        policy.tokenizer.hf.save_pretrained(model)
        order = {
            "model": str(model),
            "work": self._folder.name,
            "prompts": list(prompts),
            "group": group,
            "completion": completion,
            "steps": steps,
            "lr": lr,
            "device": policy.device.type,
        }
        self._process = subprocess.Popen(
            [str(environment()), str(HERE / "trl_grpo.py"), json.dumps(order)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(log := open(Path(self._folder.name) / "log", "w+")),  # noqa: SIM115
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
        )
        self._log = log
        self.versions = self._read()["versions"]

    def step(self) -> dict[str, float]:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        self._log.seek(0)
        raise SystemExit(f"TRL failed:\n{self._log.read()[-1500:]}")

    def __enter__(self) -> TrlProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()
        self._folder.cleanup()
