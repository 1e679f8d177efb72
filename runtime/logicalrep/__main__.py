"""Run the command line with `python -m logicalrep`."""

from logicalrep.cli import main

main()
