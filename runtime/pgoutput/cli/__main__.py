"""`python -m pgoutput.cli`: the same as `pgoutput`."""

from pgoutput.cli import main

main()
