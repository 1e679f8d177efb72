"""The message classes: constructors take keyword arguments only, and flags are members of their class."""

from __future__ import annotations

from typing import Any

import pytest

from logicalrep import _protocols, messages as m
from logicalrep.errors import EncodeError
from logicalrep.jsonlines import from_json, to_json
from tests.messages import make_column, make_relation
from tests.versions import PLAIN

BOTH = m.TruncateOption.CASCADE | m.TruncateOption.RESTART_IDENTITY


@pytest.mark.parametrize("kind", _protocols.CLASSES.values(), ids=lambda kind: kind.__name__)
def test_constructors_refuse_positional_arguments(kind: type[Any]) -> None:
    with pytest.raises(TypeError):
        kind(1)


@pytest.mark.parametrize("decode", [PLAIN.decode, PLAIN.pure_decode])
def test_decoded_flags_are_members(decode: Any) -> None:
    relation = make_relation(
        make_column("a", 23, key=True), make_column("b", 23), namespace="", identity=m.ReplicaIdentity.FULL
    )
    for message in (
        relation,
        *(m.Truncate(options=m.TruncateOption(bits), relation_oids=(1,)) for bits in range(4)),
        m.LogicalMessage(flags=m.MessageFlag.TRANSACTIONAL, lsn=1, prefix="p", content=b""),
    ):
        assert repr(decode(PLAIN.encode(message))) == repr(message)  # `==` does not tell 1 from a member
        assert repr(from_json(to_json(message))) == repr(message)
    assert decode(PLAIN.encode(m.Truncate(options=BOTH, relation_oids=()))).options is BOTH
    assert [one.flags for one in decode(PLAIN.encode(relation)).columns] == [
        m.ColumnFlag.KEY,
        m.ColumnFlag(0),
    ]


@pytest.mark.parametrize("encode", [PLAIN.encode, PLAIN.pure_encode])
def test_encoders_take_the_bits_as_int(encode: Any) -> None:
    flags = m.Truncate(options=BOTH, relation_oids=(7,))
    number = m.Truncate(options=3, relation_oids=(7,))  # type: ignore[arg-type]
    assert encode(number) == encode(flags) == b"T\0\0\0\1\3\0\0\0\7"
    for wrong in (-1, 128, 256, 1 << 70, 3.0, "3", None):
        with pytest.raises(EncodeError, match=r"Truncate\.options"):
            encode(m.Truncate(options=wrong, relation_oids=(7,)))  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [-1, 128, 3.0, "3", [3]])
def test_json_refuses_other_values_of_flags(wrong: Any) -> None:
    with pytest.raises(EncodeError, match=r"Truncate\.options"):
        from_json({"type": "Truncate", "options": wrong, "relation_oids": []})
