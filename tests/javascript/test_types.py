"""The declarations for TypeScript are those of the values that the package exports."""

from __future__ import annotations

import re

from tests.javascript.peer import SOURCES, Peer


def test_every_value_is_declared(peer: Peer) -> None:
    text = (SOURCES / "index.d.ts").read_text()
    declared = re.findall(r"^export (?:const|class|function) (\w+)", text, re.MULTILINE)
    assert sorted(declared) == sorted(peer.ask("evaluate", "Object.keys(logicalrep)"))


def test_every_member_is_declared(peer: Peer) -> None:
    text = (SOURCES / "index.d.ts").read_text()
    made = {
        "DecodeError": 'new DecodeError("")',
        "EncodeError": 'new EncodeError("", "")',
        "StreamDecoder": "new StreamDecoder([...CODECS.keys()][0])",
        "Codec": "envelope",
    }
    for name, value in made.items():
        (body,) = re.findall(rf"^export (?:class|interface) {name}\b.*?^}}", text, re.MULTILINE | re.DOTALL)
        members = re.findall(r"^  (?:readonly )?(\w+)[(:]", body, re.MULTILINE)
        names = ", ".join(f'"{member}"' for member in members)
        assert peer.ask("evaluate", f"[{names}].filter((one) => !(one in {value}))") == [], name
