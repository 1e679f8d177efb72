"""Run tests with specs that have other protocol versions: `make specs`.

The protocol versions of servers will change. So neither tests nor Python modules list them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

from tests.codegen.derived import five, six, without_oldest
from tests.codegen.spec_copy import ROOT, SpecCopy

_OTHER_NAMES = {
    "InsertBatch": "MultiInsert",
    "Insert Batch": "Multi Insert",
    "Counters": "Sequences",
    "CounterState": "SequenceState",
    "counters": "sequences",
    "new_rows": "more_rows",
    "Everything": "Anything",
    "WideData": "BroadData",
    "tag: m": "tag: q",
    "tag: J": "tag: j",
    "tag: V": "tag: v",
    "value: 4": "value: 8",
    "value: 128": "value: 64",
    "value: a": "value: h",
    "int64: {wire": "signed64: {wire",
    "type: int64": "type: signed64",
    **{name: f"Other{name}" for name in ("Mood", "Mark", "Pair")},
    **{name: f"OTHER_{name}" for name in ("ONLY", "ANY", "HIDDEN")},
    **{name: f"other_{name}" for name in ("flush_lsn", "collation", "comment", "ticket", "rownum", "label")},
    **{
        f"name: {name}": f"name: more_{name}" for name in ("kind", "pairs", "mood", "wide", "wider", "widest")
    },
    **{f"name: {name}marks": f"name: more_{name}marks" for name in ("", "other_")},
    "count: pairs": "count: more_pairs",
    **{str(oid): str(oid + 100) for oid in range(8600, 8606)},
}
"""By each name, tag and number that `five` and `six` add to a spec, another one to use instead."""


class OtherSpec(SpecCopy):
    """A copy of the spec whose `add` replaces names, so that tests can still add `five` and `six` to it."""

    def add(self, key: str, block: str, name: str = "pgoutput.yaml") -> None:
        names = "|".join(map(re.escape, _OTHER_NAMES))
        super().add(key, re.sub(rf"\b({names})\b", lambda match: _OTHER_NAMES[match[0]], block), name)


def six_released(spec: SpecCopy) -> None:
    """Add the two versions of `six` to a spec, and mark the first as released."""
    six(spec)
    spec.write(spec.read().replace("released: false", "released: true", 1))


SPECS = {"five": five, "six": six_released, "without_oldest": without_oldest}


def check(name: str, tests: list[str]) -> bool:
    """Run tests in a copy of the project with another spec and the code generated from it; return success."""
    with tempfile.TemporaryDirectory(prefix=f"{name}-") as folder:
        copy = Path(folder, "project")
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "__pycache__", "dist", "site"))
        SPECS[name](OtherSpec(copy / "spec"))
        # A .venv of its own, so that nothing finds the modules of this checkout, such as a removed codec.
        venv.create(copy / ".venv", symlinks=True)
        (site,) = copy.glob(".venv/lib/python*/site-packages")
        paths = (copy / "generated", copy / "runtime", sysconfig.get_path("purelib"))
        (site / "project.pth").write_text("\n".join(map(str, paths)))
        python = str(copy / ".venv/bin/python")
        environment = os.environ | {"PGOUTPUT_PURE": "1"}
        generate = [python, "-m", "codegen", "--release"]
        subprocess.run(generate, cwd=copy, env=environment, stdout=subprocess.DEVNULL, check=True)
        pytest = [python, "-m", "pytest", "-q", "-n", str(os.cpu_count()), "--hypothesis-profile=quick"]
        return subprocess.run([*pytest, "-m", "not slow", *tests], cwd=copy, env=environment).returncode == 0


if __name__ == "__main__":
    for name in SPECS:
        print(f"==> {name}", flush=True)
        if not check(name, sys.argv[1:]):
            sys.exit(f"the tests fail with the spec {name} of tests/specs.py")
