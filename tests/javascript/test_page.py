"""The example of the page about TypeScript runs."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.docs.test_pages import examples
from tests.javascript.peer import NODE, SOURCES

OUTPUT = """\
{"type":"Relation","oid":7,"namespace":"public","name":"t","replica_identity":"d","columns":[\
{"flags":1,"name":"id","type_oid":23,"type_modifier":-1},\
{"flags":0,"name":"note","type_oid":23,"type_modifier":-1}]}
t { id: 1, note: null }
committed up to 16/B374D848
Insert relation_oid 1 Insert.relation_oid at byte 1: expected 4 bytes of Int32 (Oid), found 2
"""


def test_the_example_prints_the_messages(tmp_path: Path) -> None:
    (example,) = examples("docs/howto/typescript.md", "typescript")
    script = tmp_path / "example.ts"
    script.write_text(example.replace('from "logicalrep"', f'from "{SOURCES / "index.js"}"'))
    done = subprocess.run([NODE, script], capture_output=True, text=True, check=True)
    assert done.stdout == OUTPUT
