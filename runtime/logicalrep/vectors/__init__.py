"""Test vectors for decoders in any language: bytes, what they mean, and whether they are legal.

`build_vectors` derives the vectors from the spec. `write_kit` writes the vectors to files of JSON lines.
`run_decoder` runs a decoder on vectors and compares its answers with the expected messages. The documentation
page "Test a decoder" describes the input and output of the decoder.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from logicalrep._extras import require
from logicalrep.vectors.answers import answer as answer
from logicalrep.vectors.judging import Verdict
from logicalrep.vectors.kit import read_kit as read_kit
from logicalrep.vectors.model import Request as Request, Vector
from logicalrep.vectors.running import run_decoder

if TYPE_CHECKING:
    from logicalrep.vectors.building import build_vectors, write_kit

__all__ = [
    "Vector",
    "Verdict",
    "build_vectors",
    "run_decoder",
    "write_kit",
]


def __getattr__(name: str) -> Any:
    if name not in ("build_vectors", "write_kit"):
        raise AttributeError(f"module {__name__} has no attribute {name}")
    require("synth", "numpy", "pyarrow")  # run_decoder needs no optional package
    return getattr(import_module(f"{__name__}.building"), name)
