"""Fuzz the compiled kernel with coverage guidance: python -m tests.fuzz SECONDS [TARGET …].

atheris (libFuzzer) mutates the inputs that reached new basic blocks. These inputs are kept in `.fuzz` and
reused by the next run. Sanitizers check the kernel, and its results are compared with those of the Python
implementation. A failing input is written to `.fuzz`; `python -m tests.fuzz 0 TARGET FILE` runs it again.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from hatch_build import build
from tests import instrumented
from tests.fuzz.targets import TARGETS

CORPUS = Path(".fuzz")
ATHERIS = Path(sys.prefix, "fuzz")
COVERAGE = Path("tests/fuzz/_coverage.pyx")
FLAGS = "-fsanitize-coverage=trace-pc"


def main() -> int:
    """Run the targets or input files that the command line names, in the given total number of seconds."""
    seconds, *arguments = sys.argv[1:] or ["120"]
    files = [name for name in arguments if name not in TARGETS]
    targets = [name for name in arguments if name in TARGETS] or list(TARGETS)
    try:
        if not ATHERIS.exists():
            raise instrumented.ToolMissing(
                "atheris is not available for this Python: see tests/fuzz/requirements.txt"
            )
        with TemporaryDirectory() as folder, instrumented.instrumented_environment(FLAGS) as environment:
            build(COVERAGE, Path(folder))
            environment["PYTHONPATH"] += f":{folder}:{ATHERIS}"
            failed = 0
            for name in targets:
                print(f"==> {name}", flush=True)
                run_arguments = [name, str(int(seconds) // len(targets)), *files]
                failed |= instrumented.run_module("tests.fuzz.run", run_arguments, environment)
            return failed
    except instrumented.ToolMissing as error:
        print(f"skipped: {error}", file=sys.stderr)
        return 0


if __name__ == "__main__":
    sys.exit(main())
