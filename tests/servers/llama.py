"""Serve a GGUF file with llama.cpp from Python: `python -m tests.servers.llama FILE PORT`."""

from __future__ import annotations

import importlib
import sys
import threading


def main(file: str, port: int) -> None:
    xllamacpp = importlib.import_module("xllamacpp")  # installed for these tests alone
    params = xllamacpp.CommonParams()
    params.model.path = file
    params.port = port
    params.n_ctx, params.n_parallel = 4096, 4
    params.cpuparams.n_threads = 1
    params.warmup = False
    server = xllamacpp.Server(params)
    threading.Event().wait()
    del server


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
