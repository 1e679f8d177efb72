"""Write the results of the codec benchmark into README.md and codec.svg.

Run `python -m benchmarks.publish` after `make bench`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from benchmarks.chart import draw
from benchmarks.codec import HEADLINE, PATH, report_lines
from benchmarks.results import Results

README: Final = Path(__file__).with_name("README.md")
PICTURE: Final = Path(__file__).with_name("codec.svg")
BLOCK: Final = re.compile("(?<=<!-- codec -->\n).*(?=<!-- end -->)", re.DOTALL)
"""Pattern that matches the part of benchmarks/README.md that contains the codec benchmark's report."""


def main() -> None:
    results = Results.load(PATH)
    PICTURE.write_text(draw(results.times(HEADLINE), results))
    tables = "\n".join(["```", *report_lines(results), "```", ""])
    README.write_text(BLOCK.sub(lambda _: tables, README.read_text()))


if __name__ == "__main__":
    main()
