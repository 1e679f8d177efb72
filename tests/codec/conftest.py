"""Fixture that runs tests with the compiled and the Python codecs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from logicalrep import compiled, envelope
from logicalrep.versions import CODECS

BOTH = ["pure"] if compiled.kernel is None else ["compiled", "pure"]


@pytest.fixture(scope="module", params=BOTH)
def both(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run each test of a module twice: with the compiled codecs, if available, and with the Python codecs."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "pure":
            for codec in (*CODECS.values(), envelope):
                patch.setattr(codec, "decode", vars(codec)["pure_decode"])
                patch.setattr(codec, "encode", vars(codec)["pure_encode"])
        yield
