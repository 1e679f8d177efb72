"""Puts what `make bench` has measured of the codec into README.md and codec.svg.

`python -m benchmarks.publish`, behind `make bench`: no figure is copied by hand.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from benchmarks.codec import HEADLINE, PATH, told
from benchmarks.picture import draw
from benchmarks.results import Results

README: Final = Path(__file__).with_name("README.md")
PICTURE: Final = Path(__file__).with_name("codec.svg")
BLOCK: Final = re.compile("(?<=<!-- codec -->\n).*(?=<!-- end -->)", re.DOTALL)
"""What stands between the two is written anew."""


def main() -> None:
    results = Results.load(PATH)
    PICTURE.write_text(draw(results.times(HEADLINE.columns, HEADLINE.format), results))
    tables = "\n".join(["```", *told(results), "```", ""])
    README.write_text(BLOCK.sub(lambda _: tables, README.read_text()))


if __name__ == "__main__":
    main()
