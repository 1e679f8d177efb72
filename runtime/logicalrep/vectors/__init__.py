"""Test vectors for decoders in any language: bytes, what they mean, and whether they are legal.

`build_vectors` derives the vectors from the spec. `write_kit` writes the vectors to files of JSON lines.
`run_decoder` runs a decoder on vectors and compares its answers with the expected messages. The documentation
page "Test a decoder" describes the input and output of the decoder.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pgoutput._extras import require
from pgoutput.vectors.answers import answer as answer
from pgoutput.vectors.judging import Verdict
from pgoutput.vectors.kit import read_kit as read_kit
from pgoutput.vectors.model import Request as Request, Vector
from pgoutput.vectors.running import run_decoder

if TYPE_CHECKING:
    from pgoutput.vectors.building import build_vectors, write_kit

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
