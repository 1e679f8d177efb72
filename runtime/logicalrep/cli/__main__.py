"""Run the command line with `python -m pgoutput.cli`."""

from pgoutput.cli import main

main()
