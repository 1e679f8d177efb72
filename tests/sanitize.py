"""Runs the tests of what the kernel does with a kernel that sanitizers watch.

python -m tests.sanitize                  all of them
python -m tests.sanitize tests/codec -x   these; it takes what pytest takes
"""

from __future__ import annotations

import sys

from tests import instrumented

TESTS = ("codec", "columns", "fuzz", "recording", "synth", "views")
LEFT_OUT = (
    "pure",  # the same without the kernel
    "kernel_choice",  # which compiles others
    "oracle",  # which starts a server
    "left_behind",  # which measures memory, and here it is another
)


def pytest_configure() -> None:
    """As a plugin, in the process that runs the tests."""
    instrumented.without_pool()


def main() -> int:
    """The command line."""
    options = ["-q", "-p", "tests.sanitize", "-k", " and ".join(f"not {name}" for name in LEFT_OUT)]
    options += ["-p", "no:faulthandler", "--capture=sys"]  # so that the sanitizers are heard
    chosen = sys.argv[1:] or [f"tests/{name}" for name in TESTS]
    try:
        with instrumented.python() as environment:
            return instrumented.call("pytest", [*options, *chosen], environment)
    except instrumented.Unable as error:
        print(f"skipped: {error}", file=sys.stderr)
        return 0


if __name__ == "__main__":
    sys.exit(main())
