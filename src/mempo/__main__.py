"""`python -m mempo` is `mempo`."""

from mempo.cli import main

main()
