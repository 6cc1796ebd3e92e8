from hypothesis import settings

import mempo  # noqa: F401 - sets the OpenMP choices before torch loads

settings.register_profile("mempo", deadline=None)  # a time limit would be a hidden timing assertion
settings.load_profile("mempo")
