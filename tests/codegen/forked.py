"""Run Python code with other generated modules, each time in a new process that need not import all packages.

The processes are forks of one process, which has imported packages from PyPI but nothing of logicalrep.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = (
    *(
        "deltalake",
        "duckdb",
        "hypothesis",
        "msgspec",
        "numpy",
        "psycopg",
        "pyarrow.compute",
        "pyarrow.dataset",
    ),
    *("pyarrow.parquet", "pyspark.sql.types", "rich.console", "rich.table", "typer.testing"),
)
"""Modules that many modules of logicalrep import, and whose import takes longer than most of the code."""


def run(out: Path, code: str) -> str:
    """Run code that imports logicalrep from the folder `out` and from runtime/; return "" or what it printed.

    The text is that of standard error, and is not empty if the code raises an exception.
    """
    path = f"{out}{os.pathsep}{ROOT / 'runtime'}"
    with tempfile.NamedTemporaryFile("r") as output:
        request = {"code": code, "output": output.name, "environment": {**os.environ, "PYTHONPATH": path}}
        server = _server()
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        failed = server.stdout.readline() != "0\n"
        return output.read() + "the code failed" if failed else ""


@functools.cache
def _server() -> subprocess.Popen[str]:
    """Start the process whose forks run code; it ends with this process."""
    server = subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    atexit.register(server.communicate)  # closes its standard input, at which it ends
    return server


def _serve() -> None:
    for name in PACKAGES:
        importlib.import_module(name)
    assert "logicalrep" not in sys.modules
    gc.freeze()  # a fork then copies less memory
    for line in sys.stdin:
        if fork := os.fork():
            print(os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]), flush=True)
            continue
        request = json.loads(line)
        output = os.open(request["output"], os.O_WRONLY)
        for descriptor, target in ((os.open(os.devnull, os.O_RDONLY), 0), (output, 1), (output, 2)):
            os.dup2(descriptor, target)
        os.environ.clear()
        os.environ.update(request["environment"])
        # generated/ is of an editable install, and this folder has modules of tests.
        others = [
            path for path in sys.path if path not in (str(ROOT / "generated"), str(Path(__file__).parent))
        ]
        sys.path[:] = [*os.environ["PYTHONPATH"].split(os.pathsep), *others]
        exec(compile(request["code"], "<code>", "exec"), {"__name__": "__main__"})
        return


if __name__ == "__main__":
    _serve()
