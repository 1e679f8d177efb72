"""Run the command line with `python -m pgoutput`."""

from pgoutput.cli import main

main()
