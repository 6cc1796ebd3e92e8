"""The command line, past a slip of vLLM's builds for CPUs.

At its start such a build reads `__dict__` of whatever any loaded module holds. The library object of llvmlite (which
bm25s loads, through numba, where it is installed) answers every name with a function.
"""

from __future__ import annotations

import importlib
from typing import Any

from mempo.cli.main import main

if __name__ == "__main__":
    library: Any = importlib.import_module("llvmlite.binding.ffi")._lib_wrapper
    any_name = library.__getattr__

    def by_name(self: Any, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return any_name(self, name)

    library.__getattr__ = by_name
    main()
