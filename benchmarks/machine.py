"""Description of the machine, and the folder of the benchmarks' files."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parents[1] / ".venv" / "bench"
"""Folder in which `make bench` installs pypgoutput and the npm package, and saves results."""

COMMANDS: Final = {"cc": "cc --version", "Node": "node --version"}
"""Commands that print the version of a program in their first line, by name of the program."""


def machine() -> str:
    """Return processor, system, and versions of Python, C compiler and Node in one line."""
    parts = [f"{_processor()}, {os.cpu_count()} cores", platform.system()]
    parts.append(f"{platform.python_implementation()} {platform.python_version()}")
    for name, command in COMMANDS.items():
        program, *rest = command.split()
        if shutil.which(program):
            output = subprocess.run([program, *rest], capture_output=True, text=True, check=False).stdout
            parts.append(f"{name} {re.findall('[0-9.]+$', output.splitlines()[0])[0]}")
    return ", ".join(parts)


def _processor() -> str:
    try:
        cpuinfo = Path("/proc/cpuinfo").read_text()
    except FileNotFoundError:
        return platform.processor() or platform.machine()
    match = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return match[1] if match else platform.machine()
