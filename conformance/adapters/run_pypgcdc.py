"""Run pypgcdc (PyPI: python-postgres-cdc) on test vectors. Its reader refuses tags without OperationType."""

from __future__ import annotations

from typing import Any

from loop import serve, version_1_text
from pypgcdc.models import OperationType
from pypgoutput_fields import decoder

decode_known = decoder("pypgcdc")


def decode(data: bytes) -> dict[str, Any]:
    """Decode a message as LogicalReplicationReader does."""
    OperationType(data[:1].decode("utf-8"))
    return decode_known(data)


if __name__ == "__main__":
    serve(lambda request: decode, version_1_text)
