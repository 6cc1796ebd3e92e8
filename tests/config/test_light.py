"""Reading a configuration loads nothing heavy."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "tokenizers", "numpy", "faiss", "aiohttp", "fastapi", "matplotlib")


@pytest.mark.parametrize(
    "code",
    [
        "import mempo.config",
        "import mempo.cli.main",
        "from mempo.cli.main import app; app(['config', 'quickstart'], standalone_mode=False)",
        "from mempo.cli.main import app; app(['train', 'quickstart', '--dry-run'], standalone_mode=False)",
    ],
)
def test_no_heavy_library_is_loaded(code: str) -> None:
    report = f"{code}\nimport sys\nprint('\\nLOADED', sorted(set({HEAVY}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", report], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "LOADED []"
