"""mempo: train, evaluate and inspect long-horizon LLM agents that manage their own memory.

OpenMP threads that spin at barriers make torch many times slower on a busy machine, and the choice is read once,
when torch is first loaded. So importing `mempo` asks for passive waiting, unless the user has decided already.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("GOMP_SPINCOUNT", "0")

__version__ = "0.1.0"
