"""The memory that it takes to read a stream: `python -m benchmarks.resident 1000000`.

That prints the peak of its resident memory in bytes. It makes the stream, and has one batch of it at a time.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

from benchmarks import columnar, objects
from benchmarks.streams import Shape, stream


def peak(messages: int) -> int:
    """Bytes of resident memory, at most, of a process that reads so many messages."""
    command = [sys.executable, "-m", "benchmarks.resident", str(messages)]
    return int(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def main() -> None:
    shape = Shape(6, "text")
    readers = [*columnar.contestants(shape), *objects.ours()]
    for batch in stream(shape, int(sys.argv[1])):
        for reader in readers:
            reader.prepare(batch)()
    print(_own_peak())


def _own_peak() -> int:
    # What the system counts for a child would begin with the memory of its parent (execve in getrusage(2)).
    try:
        told = Path("/proc/self/status").read_text()
    except FileNotFoundError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (line,) = (line for line in told.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()
