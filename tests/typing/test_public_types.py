"""mypy accepts `public_types.py`: every type is as asserted there, and every wrong call is an error."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FILE = Path(__file__).with_name("public_types.py")
ROOT = FILE.parents[2]


def test_type_checkers_see_the_documented_types() -> None:
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(FILE)]
    mypy = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (mypy.stdout, mypy.returncode) == ("", 0)
