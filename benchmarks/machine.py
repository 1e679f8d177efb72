"""What figures are measured on, and the folder for what that needs."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parents[1] / ".venv" / "bench"
"""Where `make bench` installs what is measured beside us, and where results are kept."""

COMMANDS: Final = {"cc": "cc --version", "Node": "node --version"}
"""What tells its version in its first line."""


def machine() -> str:
    """In a line: the processor, the system, and the versions of what has run."""
    parts = [f"{_processor()}, {os.cpu_count()} cores", platform.system()]
    parts.append(f"{platform.python_implementation()} {platform.python_version()}")
    for name, command in COMMANDS.items():
        program, *rest = command.split()
        if shutil.which(program):
            told = subprocess.run([program, *rest], capture_output=True, text=True, check=False).stdout
            parts.append(f"{name} {re.findall('[0-9.]+$', told.splitlines()[0])[0]}")
    return ", ".join(parts)


def _processor() -> str:
    try:
        told = Path("/proc/cpuinfo").read_text()
    except FileNotFoundError:
        return platform.processor() or platform.machine()
    found = re.search(r"^model name\s*:\s*(.+)$", told, re.MULTILINE)
    return found[1] if found else platform.machine()
