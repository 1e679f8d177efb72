"""Samples of values in text format: edge cases and deterministic random values."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

COUNT = 400
"""Number of random values that are generated for each type."""

_RANDOM = Random(21)


def _many(make: Callable[[], str]) -> list[str]:
    return [make() for _ in range(COUNT)]


def _numeric() -> str:
    digits = "".join(_RANDOM.choices("0123456789", k=_RANDOM.choice((1, 3, 4, 5, 8, 17, 40))))
    text = _RANDOM.choice(("", "-")) + digits
    form = _RANDOM.randrange(4)
    if form == 0:
        return text
    if form == 1:
        return f"{text}.{'0' * _RANDOM.randrange(9)}{_RANDOM.randrange(10**9)}{'0' * _RANDOM.randrange(9)}"
    if form == 2:
        return f"0.{'0' * _RANDOM.randrange(30)}{digits}"
    return f"{text}e{_RANDOM.randrange(-40, 60)}"


_LETTERS = "abcAZ01 \"'\\{}()[],;:.&|!<->*\t\n\r\v\fé漢😀\x01\x7f"
_WORDS = (
    "",
    "NULL",
    "null",
    "a",
    "a b",
    "{",
    "}",
    '"',
    "\\",
    "\\\\",
    '\\"',
    ",",
    ";",
    "(1,2)",
    "\t",
    "\v",
    "é",
    "😀",
    " ",
)


def _text() -> str:
    return "".join(_RANDOM.choices(_LETTERS, k=_RANDOM.randrange(12)))


_JSON = (
    "1",
    '"a"',
    "[]",
    "{}",
    "null",
    "true",
    "1.50",
    '"\\u00e9\\n"',
    '"q\\"\\\\"',
    '{"b": [1,2, {"a": null}], "a": 1e3}',
)


def _json() -> str:
    return "[" + ", ".join(_RANDOM.choices(_JSON, k=_RANDOM.randrange(4))) + "]"


def _float_text() -> str:
    numbers = (
        _RANDOM.uniform(-1e3, 1e3),
        _RANDOM.gauss(0, 1e20),
        1e-7,
        0.0,
        -0.0,
        float(_RANDOM.randrange(99)),
    )
    return repr(_RANDOM.choice(numbers))


def _point() -> str:
    return f"({_float_text()},{_float_text()})"


def _points(opening: str, closing: str) -> str:
    return opening + ",".join(_point() for _ in range(_RANDOM.randrange(1, 6))) + closing


def _address() -> str:
    return ".".join(str(_RANDOM.choice((0, 1, 10, 255, _RANDOM.randrange(256)))) for _ in range(4))


def _address6() -> str:
    words = [_RANDOM.choice((0, 0, 0, 1, 0xFFFF, _RANDOM.getrandbits(16))) for _ in range(8)]
    if not _RANDOM.randrange(4):
        words[:6] = [0, 0, 0, 0, 0, _RANDOM.choice((0, 0xFFFF, 1))]
    return ":".join(f"{word:x}" for word in words)


def _tid() -> str:
    return f"({_RANDOM.getrandbits(32)},{_RANDOM.getrandbits(16)})"


def _inet() -> str:
    address, most = _RANDOM.choice(((_address, 32), (_address6, 128)))
    return f"{address()}/{_RANDOM.choice((most, _RANDOM.randrange(most + 1)))}"


def _mac(size: int) -> str:
    return _RANDOM.randbytes(size).hex(":")


def _bits() -> str:
    return "".join(_RANDOM.choices("01", k=_RANDOM.choice((1, 7, 8, 9, 31, 32, 33, 100))))


def _snapshot() -> str:
    first = _RANDOM.randrange(1, 10 ** _RANDOM.randrange(1, 19))
    between = sorted({first + _RANDOM.randrange(50) for _ in range(_RANDOM.randrange(5))})
    return f"{first}:{first + 50}:{','.join(map(str, between))}"


def _lexeme() -> str:
    text = "".join(_RANDOM.choices("abc 'é\\:&|!*()<-", k=_RANDOM.randrange(1, 6)))
    return "'" + text.replace("'", "''").replace("\\", "\\\\") + "'"


def _tsvector() -> str:
    def entry() -> str:
        positions = [
            f"{_RANDOM.randrange(1, 17000)}{_RANDOM.choice('ABCD ').strip()}"
            for _ in range(_RANDOM.randrange(4))
        ]
        return _lexeme() + (":" + ",".join(positions) if positions else "")

    return " ".join(entry() for _ in range(_RANDOM.randrange(6)))


def _tsquery(depth: int = 5) -> str:
    if not depth or not _RANDOM.randrange(4):
        flags = "".join(_RANDOM.sample("ABCD*", k=_RANDOM.randrange(5)))
        return _lexeme() + (f":{flags}" if flags else "")
    if not _RANDOM.randrange(4):
        return f"!({_tsquery(depth - 1)})"
    operator = _RANDOM.choice(("&", "|", "<->", "<2>", "<0>", "<16384>"))
    return f"({_tsquery(depth - 1)}) {operator} ({_tsquery(depth - 1)})"


TEXTS: dict[str, list[str]] = {
    "numeric": [
        "0",
        "-0",
        "0.000",
        "NaN",
        "Infinity",
        "-Infinity",
        "1",
        "-1",
        "10000",
        "9999",
        "0.0001",
        "0.00010000",
        "99990000.00000001",
        "1e131071",
        "-1e-16383",
        "1e100",
        *_many(_numeric),
    ],
    "text": [*_WORDS, *_many(_text)],
    "varchar": [*_WORDS, *_many(_text)],
    "bpchar": [*_WORDS, "ab  ", *_many(_text)],
    "name": [*_WORDS, *_many(_text)],
    "refcursor": [*_WORDS],
    "json": ['{"a":  1}', *_JSON, *_many(_json)],
    "jsonb": [*_JSON, *_many(_json)],
    "jsonpath": ["$", "strict $.a", '$."a"[*] ? (@.b > 1 && @ like_regex "x\\"")', "$.a[0 to last].size()"],
    "bit": _many(_bits),
    "varbit": ["", *_many(_bits)],
    "inet": [
        "::",
        "::1",
        "::1.2.3.4",
        "::ffff:1.2.3.4",
        "::ffff:0:1.2.3.4",
        "1::",
        "0.0.0.0/0",
        *_many(_inet),
    ],
    "cidr": ["10.0.0.0/8", "10.0.0.1/32", "::/0", "::ffff:0.0.0.0/96", "2001:db8::/32", "0.0.0.0/0"],
    "macaddr": _many(lambda: _mac(6)),
    "macaddr8": _many(lambda: _mac(8)),
    "point": ["(NaN,Infinity)", "(-Infinity,-0)", *_many(_point)],
    "lseg": _many(lambda: f"[{_point()},{_point()}]"),
    "box": _many(lambda: f"{_point()},{_point()}"),
    "line": _many(lambda: f"{{{_float_text()},1,{_float_text()}}}"),
    "circle": _many(lambda: f"<{_point()},{_RANDOM.uniform(0, 9)}>"),
    "path": _many(lambda: _points(*_RANDOM.choice(("[]", "()")))),
    "polygon": _many(lambda: _points("(", ")")),
    "tid": ["(0,0)", "(4294967295,65535)", *_many(_tid)],
    "int2vector": ["", "1", "1 -2 32767"],
    "oidvector": ["", "1", "1 2 4294967295"],
    "txid_snapshot": ["10:20:10,14", "10:10:", *_many(_snapshot)],
    "pg_snapshot": ["10:20:10,14", "10:10:", *_many(_snapshot)],
    "tsvector": ["", *_many(_tsvector)],
    "tsquery": [
        "",
        "!a",
        "!(a & b)",
        "!!a",
        "a <-> (b <-> c)",
        "(a <-> b) <-> c",
        "a & (b | c) <2> d:*AB",
        *_many(_tsquery),
    ],
}
"""Samples in text format, by type name."""
