"""Fuzzes the compiled kernel, guided by which of its blocks run: python -m tests.fuzz SECONDS [TARGET …].

atheris, which brings libFuzzer, makes inputs out of those that ran what none had run before; they are kept in
`.fuzz`, where the next run goes on. Sanitizers watch the kernel, and what it gives is compared with what
Python gives. An input at fault is left in `.fuzz` too: `python -m tests.fuzz 0 TARGET FILE` tries it again.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from hatch_build import build
from tests import instrumented
from tests.fuzz.targets import TARGETS

KEPT = Path(".fuzz")
ATHERIS = Path(sys.prefix, "fuzz")
COVERAGE = Path("tests/fuzz/_coverage.pyx")
FLAGS = "-fsanitize-coverage=trace-pc"


def main() -> int:
    """The command line: how long in all, and what."""
    seconds, *chosen = sys.argv[1:] or ["120"]
    files = [name for name in chosen if name not in TARGETS]
    targets = [name for name in chosen if name in TARGETS] or list(TARGETS)
    try:
        if not ATHERIS.exists():
            raise instrumented.ToolMissing(
                "there is no atheris for this Python: see tests/fuzz/requirements.txt"
            )
        with TemporaryDirectory() as folder, instrumented.instrumented_environment(FLAGS) as environment:
            build(COVERAGE, Path(folder))
            environment["PYTHONPATH"] += f":{folder}:{ATHERIS}"
            failed = 0
            for name in targets:
                print(f"==> {name}", flush=True)
                arguments = [name, str(int(seconds) // len(targets)), *files]
                failed |= instrumented.run_module("tests.fuzz.run", arguments, environment)
            return failed
    except instrumented.ToolMissing as error:
        print(f"skipped: {error}", file=sys.stderr)
        return 0


if __name__ == "__main__":
    sys.exit(main())
