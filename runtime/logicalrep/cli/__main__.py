"""Run the command line with `python -m logicalrep.cli`."""

from logicalrep.cli import main

main()
