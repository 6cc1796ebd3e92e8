"""`python -m mempo` is `mempo`."""

from mempo.cli.main import main

main()
