"""Compiles the kernel when a wheel is built, where that is possible; else the wheel is in Python only.

Cython makes C from `generated/pgoutput/_kernel.pyx`, and the C compiler that Python knows makes a module of
it, all in a temporary folder: nothing is left in the tree, editable installs included.

`python hatch_build.py FOLDER` puts the compiled module into a folder of yours. CFLAGS have the last word.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from setuptools import Distribution, Extension
from setuptools.errors import CCompilerError, PlatformError

SOURCE = Path("generated/pgoutput/_kernel.pyx")


class Unable(Exception):
    """Nothing can be compiled here; the text says why."""


class KernelHook(BuildHookInterface[Any]):
    """Puts the compiled kernel into the wheel, beside the modules in Python."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile before the wheel is put together; hatchling calls it."""
        self._folder = tempfile.TemporaryDirectory()
        try:
            built = build(Path(self.root, SOURCE), Path(self._folder.name))
        except Unable as error:
            self.app.display_warning(
                f"pgoutput is built in Python only, without its compiled kernel: {error}"
            )
            return
        where = "force_include_editable" if version == "editable" else "force_include"
        build_data[where][str(built)] = f"pgoutput/{built.name}"
        build_data.update(pure_python=False, infer_tag=True)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Clean up behind it; hatchling calls it."""
        self._folder.cleanup()


def build(source: Path, folder: Path) -> Path:
    """Compile `source`, and put the module into `folder`.

    Raises:
        Unable: There is no C compiler, or no Python.h, or the environment says PGOUTPUT_PURE=1.
        CompileError: `source` cannot be compiled, though others could be.
    """
    if os.environ.get("PGOUTPUT_PURE") == "1":
        raise Unable("PGOUTPUT_PURE=1 is set")
    with tempfile.TemporaryDirectory() as temporary:
        probe = Path(temporary, "probe.c")
        probe.write_text("#include <Python.h>\n")
        try:
            _compile(Extension("probe", [str(probe)]), temporary, temporary)
        except (CCompilerError, PlatformError) as error:
            missing = "a C compiler and Python's headers (Debian, Ubuntu: apt install gcc python3-dev)"
            raise Unable(f"install {missing}, then pgoutput anew") from error
        from Cython.Build import cythonize

        flags = ["-O3", "-g0", *os.environ.get("CFLAGS", "").split()]
        extension = Extension(source.stem, [str(source)], extra_compile_args=flags)
        (extension,) = cythonize(  # type: ignore[no-untyped-call]
            extension, build_dir=temporary, force=True, quiet=True
        )
        return _compile(extension, str(folder), temporary)


def _compile(extension: Extension, folder: str, temporary: str) -> Path:
    command = Distribution({"ext_modules": [extension]}).get_command_obj("build_ext")
    command.build_lib, command.build_temp = folder, temporary
    command.ensure_finalized()
    command.run()
    return Path(command.get_ext_fullpath(extension.name))


if __name__ == "__main__":
    print(build(SOURCE, Path(sys.argv[1])))
