"""Run the tests that have failed while others ran again, each alone: `make test` does so if they are few.

Some tests wait for servers, disks and other processes, which a busy machine delays. A test that passes alone
does not fail `make test`, but is named at its end: mend its timing. A test that finds a fault fails again.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

FAILED: Final = Path(".pytest_cache/v/cache/lastfailed")
MOST: Final = 3
"""Largest number of failed tests that are run again. More failures have another cause than a busy machine."""


def main() -> int:
    """Run the failed tests again, each alone; return the exit code: 0 if all pass."""
    tests = [*json.loads(FAILED.read_text())] if FAILED.exists() else []
    if not 0 < len(tests) <= MOST:
        return 1
    print(f"\n{len(tests)} of the tests failed beside others. Alone:", flush=True)
    modules = {test.partition("::")[0] for test in tests}
    command = [sys.executable, "-m", "pytest", "-q", "--last-failed", *sorted(modules)]
    if code := subprocess.run(command).returncode:
        return code
    print("Passed alone, and failed beside others, which is to be mended:", *tests, sep="\n- ")
    return 0


if __name__ == "__main__":
    sys.exit(main())
