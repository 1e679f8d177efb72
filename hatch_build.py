"""Hatchling build hook: compiles the kernel for a wheel if possible; otherwise the wheel is pure Python.

Cython translates `generated/logicalrep/_kernel.pyx`, and the files in `runtime/kernel` that it includes, to
C. The C compiler that Python is configured with compiles the C file. All files are in a temporary folder: the
source tree stays clean, also in editable installs.

`python hatch_build.py FOLDER` writes the compiled module to a folder. The environment variable CFLAGS is
appended to the compiler's flags.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from setuptools import Distribution, Extension
from setuptools.errors import CCompilerError, CompileError, PlatformError

SOURCE = Path("generated/logicalrep/_kernel.pyx")
INCLUDED = Path(__file__).parent / "runtime/kernel"
"""Folder of the hand-written files that the kernel includes."""


class CannotCompile(Exception):
    """This machine or environment cannot compile the kernel; the text gives the reason."""


class KernelHook(BuildHookInterface[Any]):
    """Build hook that adds the compiled kernel to the wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the kernel before hatchling builds the wheel."""
        self._folder = tempfile.TemporaryDirectory()
        try:
            module = build(Path(self.root, SOURCE), Path(self._folder.name))
        except CannotCompile as error:
            self.app.display_warning(
                f"logicalrep is built in Python only, without its compiled kernel: {error}"
            )
            return
        include = "force_include_editable" if version == "editable" else "force_include"
        build_data[include][str(module)] = f"logicalrep/{module.name}"
        build_data.update(pure_python=False, infer_tag=True)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the temporary folder after hatchling has built the wheel."""
        self._folder.cleanup()


def build(source: Path, folder: Path) -> Path:
    """Compile a Cython module, and return the path of the compiled module.

    Args:
        source: The Cython source file.
        folder: The folder for the compiled module.

    Raises:
        CannotCompile: There is no C compiler or no Python.h, or LOGICALREP_PURE=1 is set.
        CompileError: The compiler works, but cannot compile `source`.
    """
    if os.environ.get("LOGICALREP_PURE") == "1":
        raise CannotCompile("LOGICALREP_PURE=1 is set")
    with tempfile.TemporaryDirectory() as temporary:
        probe = Path(temporary, "probe.c")
        probe.write_text("#include <Python.h>\n")
        try:
            _compile(Extension("probe", [str(probe)]), temporary, temporary)
        except (CCompilerError, PlatformError) as error:
            missing = "a C compiler and Python's headers (Debian, Ubuntu: apt install gcc python3-dev)"
            raise CannotCompile(f"install {missing}, then install logicalrep again") from error
        # cythonize would search for the included files only where its first call in this process searched.
        from Cython.Compiler.Main import compile

        c_file = str(Path(temporary, f"{source.stem}.c"))
        options = {"include_path": [str(INCLUDED)], "output_file": c_file}
        result = compile(str(source), full_module_name=source.stem, **options)  # type: ignore[no-untyped-call]
        if result.num_errors:
            raise CompileError(f"Cython cannot translate {source}; its messages are above")
        flags = ["-O3", "-g0", *os.environ.get("CFLAGS", "").split()]
        extension = Extension(source.stem, [c_file], extra_compile_args=flags)
        return _compile(extension, str(folder), temporary)


def _compile(extension: Extension, folder: str, temporary: str) -> Path:
    command = Distribution({"ext_modules": [extension]}).get_command_obj("build_ext")
    command.build_lib, command.build_temp = folder, temporary
    command.ensure_finalized()
    command.run()
    return Path(command.get_ext_fullpath(extension.name))


if __name__ == "__main__":
    print(build(SOURCE, Path(sys.argv[1])))
