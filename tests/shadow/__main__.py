"""Run tests of PostgreSQL beside `logicalrep sync`: `python -m tests.shadow SOURCES PROGRAMS [TEST…]`.

A test is named like `subscription/013_partition`, `recovery/006_logical_decoding` or `traffic/core+kills`.
Patterns such as `subscription/*` name several; without a name all tests run. The results are kept in
`.shadow`, also those of other versions. The page in docs/ is written from all of them.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import tempfile
import time
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import msgspec

from tests.shadow import report
from tests.shadow.follow import run_test
from tests.shadow.programs import Programs
from tests.shadow.results import KINDS, Outcome, save, save_names
from tests.shadow.sync import Rules
from tests.shadow.traffic import TRAFFIC, run_traffic

KEPT: Final = Path(__file__).parents[2] / ".shadow"

RECOVERY: Final = ["006", "010", "035", "038", "040", "044", "046"]
"""Numbers of the recovery tests that are about logical slots."""

UNFOLLOWED: Final = {
    "035_standby_logical_decoding": "a replica's slot on the primary prevents the conflicts that it tests"
}
"""Reasons why tests cannot run beside a replica, by name."""

VARIANTS: Final[dict[str, dict[str, Any]]] = {
    "": {},
    "kills": {"kills": True},
    "short": {"options": ("--segment-seconds", "0.1")},
    "long": {"options": ("--segment-seconds", "10")},
}
"""By name, fields of `Rules`. Traffic also has the variants `events` and `roots`."""

TRAFFIC_VARIANTS: Final = {"regress": ("", "kills", "short", "long", "events", "roots")}
"""Variants by traffic; the others run as they are and with kills."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="make shadow", description=__doc__)
    parser.add_argument("source", type=Path, help="a folder with the sources of the server's version")
    parser.add_argument("programs", type=Path, help="the folder of the server's programs, with pg_config")
    parser.add_argument("tests", nargs="*", help="names or patterns; the default is all tests")
    parser.add_argument(
        "--keep", action="store_true", help="keep the replicas and logs of all tests, not only of failed ones"
    )
    arguments = parser.parse_args()
    programs = Programs(arguments.programs.resolve())
    tests = find_tests(arguments.source.resolve())
    chosen = dict.fromkeys(t for one in arguments.tests or ["*"] for t in tests if fnmatchcase(t, one))
    if not chosen:
        raise SystemExit(f"no such test; there are {', '.join(tests)}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    kept = KEPT / str(programs.major)
    save_names(tests, kept)
    for test in chosen:
        save(run(test, arguments.source.resolve(), programs, keep=arguments.keep), kept)
        report.PAGE.write_text(report.page(KEPT), encoding="utf-8")


def find_tests(source: Path) -> list[str]:
    """Return the names of all tests that the sources have."""
    tap = [
        f"{suite}/{path.stem}"
        for suite in ("subscription", "recovery")
        for path in sorted((source / "src/test" / suite / "t").glob("*.pl"))
        if suite == "subscription" or path.name[:3] in RECOVERY
    ]
    followed = [*tap, *(f"{name}+kills" for name in tap)]
    traffic = [
        f"traffic/{name}{'+' if variant else ''}{variant}"
        for name in TRAFFIC
        for variant in TRAFFIC_VARIANTS.get(name, ("", "kills"))
    ]
    return [*followed, *traffic]


def run(test: str, source: Path, programs: Programs, *, keep: bool) -> Outcome:
    """Run one test and return its outcome; print a line about it."""
    kind, _, rest = test.partition("/")
    name, _, variant = rest.partition("+")
    outcome = Outcome(test, programs.version, version("logicalrep"), datetime.now(UTC).date().isoformat())
    folder = Path(tempfile.mkdtemp(prefix="logicalrep-shadow-", dir="/tmp"))  # a socket's path is short
    folder.chmod(0o755)
    rules = Rules(**VARIANTS.get(variant, {}))
    begin = time.monotonic()
    if kind == "traffic":
        rules = msgspec.structs.replace(rules, seconds=900.0)
        flags = {flag: variant == flag for flag in ("roots", "events")}
        run_traffic(name, source, programs, folder / "run", rules, outcome, **flags)
    elif name in UNFOLLOWED:
        outcome.skipped = UNFOLLOWED[name]
    else:
        path = source / "src/test" / kind / "t" / f"{name}.pl"
        run_test(source, path, programs, folder / "run", rules, outcome)
    outcome.seconds = round(time.monotonic() - begin)
    kinds = [result.kind for result in outcome.worst()]
    counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in KINDS if kind in kinds)
    print(
        f"{test}: {outcome.skipped or counts or 'nothing to follow'}; {outcome.own} ({outcome.seconds} s)",
        flush=True,
    )
    if keep or set(kinds) & {"SILENT", "ended"} or "exit code" in outcome.own:
        print(f"    replicas and logs are in {folder}", flush=True)
    else:
        shutil.rmtree(folder)
    return outcome


if __name__ == "__main__":
    main()
