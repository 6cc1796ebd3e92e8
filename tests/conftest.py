import mempo  # noqa: F401 - sets the OpenMP choices before torch loads
