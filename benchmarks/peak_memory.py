"""Benchmark of the memory for reading a stream of a given length: `python -m benchmarks.peak_memory 1000000`.

The argument is the number of messages. The command makes a stream of this length batch by batch, reads the
stream, and prints the peak resident memory of its process in bytes.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

from benchmarks import columnar, objects
from benchmarks.streams import Shape, stream


def measure_peak(messages: int) -> int:
    """Return the peak resident memory, in bytes, of a process that reads a stream of this many messages."""
    command = [sys.executable, "-m", "benchmarks.peak_memory", str(messages)]
    return int(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def main() -> None:
    shape = Shape(6, "text")
    readers = [*columnar.implementations(shape), *objects.ours()]
    for batch in stream(shape, int(sys.argv[1])):
        for reader in readers:
            reader.prepare(batch)()
    print(_own_peak())


def _own_peak() -> int:
    # RUSAGE_CHILDREN would include the memory of the parent before execve (getrusage(2)).
    try:
        status = Path("/proc/self/status").read_text()
    except FileNotFoundError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()
