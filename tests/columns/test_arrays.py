"""Only `logicalrep._arrays` builds Arrow arrays from buffers and reads the buffers of Arrow arrays."""

from __future__ import annotations

import re
from pathlib import Path


def test_only_one_module_knows_the_buffers_of_arrays() -> None:
    sources = (Path(__file__).parents[2] / "runtime").rglob("*.py")
    pattern = re.compile(r"Array\.from_buffers|\.buffers\(\)")
    assert [path.name for path in sources if pattern.search(path.read_text("utf-8"))] == ["_arrays.py"]
