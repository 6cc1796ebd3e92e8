import os

from hypothesis import settings

# Tiny models: a second thread costs more than it brings. Before torch loads.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import mempo  # noqa: F401 - sets the other OpenMP choices

settings.register_profile("mempo", deadline=None)  # a time limit would be a hidden timing assertion
settings.load_profile("mempo")
