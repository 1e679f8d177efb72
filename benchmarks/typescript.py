"""Benchmark of the npm package against npm's pg-logical-replication, in one node process.

The streams are those of the codec benchmark. pg-logical-replication converts values by the types of their
columns; it is measured with the real types, and with all columns declared as text. The views of binary cells,
which both packages make, are also measured alone.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Final

import msgspec

from benchmarks import node
from benchmarks.streams import Shape, batch
from tests.javascript.peer import NODE, SOURCES

AT_LEAST: Final = 3
"""Smallest allowed ratio of the CPU time of pg-logical-replication to that of the npm package."""

TARGET: Final = Shape(6, "text")
SHAPES: Final = {
    "text, 6 columns": TARGET,
    "text, 50 columns": Shape(50, "text"),
    "irregular, 6 columns": Shape(6, "text", irregular=True),
    "binary, 6 columns": Shape(6, "binary"),
}


def main() -> int:
    modules = node.installed()
    if modules is None:
        print("npm cannot install pg-logical-replication: not measured")
        return 0
    met = True
    print("Nanoseconds of CPU time per message, medians: logicalrep, pg-logical-replication, ratio, views")
    for name, shape in SHAPES.items():
        for strings in (False, True):
            rounds = measure(modules, shape, strings)
            ours, theirs, views = (statistics.median(times) for times in zip(*rounds, strict=True))
            ratio = statistics.median(their / our for our, their, _ in rounds)
            title = name + (", strings" if strings else "")
            floor = f"{views:6,.0f}" if shape.format == "binary" else ""
            print(f"{title:30} {ours:6,.0f} {theirs:7,.0f} {ratio:5.1f}{floor}")
            met &= shape != TARGET or ratio >= AT_LEAST
    print(f"Target for text, 6 columns: at least {AT_LEAST} times the speed: {'met' if met else 'MISSED'}.")
    return 0 if met else 1


def measure(modules: Path, shape: Shape, strings: bool) -> list[tuple[float, float, float]]:
    """Return the nanoseconds per message of each round: ours, pg-logical-replication's, and of the views."""
    relation = node.all_text(shape.relation) if strings else shape.relation
    messages = [relation, *batch(shape, 0, shape.batch_size).data.to_pylist()]
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"".join(len(one).to_bytes(4, "big") + one for one in messages))
        file.flush()
        command: list[str | Path] = [NODE, Path(__file__).with_suffix(".js"), SOURCES / "index.js", file.name]
        environment = os.environ | {"NODE_PATH": str(modules)}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    return msgspec.json.decode(done.stdout, type=list[tuple[float, float, float]])


if __name__ == "__main__":
    raise SystemExit(main())
