"""Run pypgoutput on test vectors. Its LogicalReplicationReader ignores messages that it has no class for."""

from __future__ import annotations

from loop import serve, version_1_text
from pypgoutput_fields import decoder

if __name__ == "__main__":
    serve(lambda request: decoder("pypgoutput"), version_1_text)
