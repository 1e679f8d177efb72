"""The word `pgoutput` stands for the server's plugin and its format only; the package has another name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
TREE = (
    *(".ci", ".github", "benchmarks", "codegen", "conformance", "deploy", "docs", "examples", "generated"),
    *("runtime", "spec", "tests", "*.md", "*.py", "*.toml", "*.yml", "LICENSE", "Makefile"),
)
KEPT: Mapping[str, str] = {
    "the plugin, in SQL and commands for a server": r"""
        slot\w*\([^()]*?'pgoutput'
        DISTINCT FROM 'pgoutput'
        "pgoutput", False
        LOGICAL pgoutput\b
        --plugin=pgoutput
        plugin(?:"|\.name")?\s*(?:[=:!]=?|,)\s*\\?["'`]pgoutput
        check_plugin\("pgoutput"\)
        test_decoding,pgoutput
        slot<br>pgoutput
        """,
    "the plugin and its messages, in texts about them": r"""
        plugin (?:is not )?\\?["'`]?pgoutput\b
        output plugin \| `pgoutput` \|
        \| usually `pgoutput` \| `pgoutput`
        `pgoutput`, (?:`decoderbufs`|and the messages of the streaming)
        the pgoutput plugin
        \bpgoutput messages?\b
        plugins other than `pgoutput`
        none with `pgoutput`
        PostgreSQL 9 has no `pgoutput`
        messages? of `?pgoutput
        the word `pgoutput`
        message: pgoutput itself
        """,
    "texts of a server": r"""
        '"pgoutput"'
        unrecognized pgoutput option
        add pgoutput to its setting
        """,
    "C functions and files of PostgreSQL": r"""
        \bpgoutput\.c\b
        \bpgoutput_(?:startup|change|truncate|message|\w+_txn|stream_\w+|send_begin|row_filter\w*|column_list_init)\b
        """,
    "the spec's protocol, and files that are made of it": r"""
        (?<!kubernetes/)\bpgoutput\\?\.yaml
        \bpgoutput_(?:v\d|v\{|envelope)
        protocols?(?:\.|: | )`?pgoutput
        protocols\["pgoutput"\]
        protocol\.name [!=]= "pgoutput"
        \("protocol"\) == "pgoutput"
        protocols, `pgoutput`
        protocols are pgoutput
        "pgoutput" in spec\.protocols
        PROTOCOLS = \("pgoutput"
        \("pgoutput", "replication"\)
        "pgoutput: only a spec without
        name="pgoutput",
        version of pgoutput\.
        \bpgoutput, replication =
        _sent\(spec, pgoutput,
        set pgoutput =
        \{\{ pgoutput\[
        """,
    "Spark's name of the format": r"""
        format(?: name)? ?\(?\\?["'`]pgoutput
        \b(?:from|to)_pgoutput\b
        [Dd]ata source (?:by its name )?`pgoutput`
        data source: "pgoutput"
        return "pgoutput"
        """,
    "other people's packages": r"""
        pypgoutput
        \bpgoutput[-_]decoder\b
        \bpgoutput-parser\b
        \bpgoutputDecode\b
        \bPg[Oo]utput(?:Plugin|Parser)\b
        \bpgoutput\.(?:_CONVERTERS|PgOutputDecoder|Column\b)
        processors\.postgres import pgoutput
        """,
    "a word by which people search": r"""
        "logical replication", "pgoutput"
        """,
    "removing what was installed before the package had its name": r"""
        LIKE 'pgoutput%'|nspname = 'pgoutput'|replace\("logicalrep", "pgoutput"\)
        """,
}
"""Where the word stays, and why: regular expressions for what surrounds it in a line."""


def test_the_word_stays_only_where_the_plugin_is_meant() -> None:
    patterns = [re.compile(line.strip()) for one in KEPT.values() for line in one.split("\n") if line.strip()]
    used, left = set[str](), list[str]()
    files = [path for one in TREE for root in ROOT.glob(one) for path in (root, *root.rglob("*"))]
    for path in files:
        name = path.relative_to(ROOT).as_posix()
        if "__pycache__" in name or path.suffix in (".gz", ".png", ".so") or path == Path(__file__):
            continue
        if "pgoutput" in path.name and name != "spec/pgoutput.yaml":
            left.append(name)
        if not path.is_file():
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            rest = line
            if "pgoutput" in line.lower():
                for pattern in patterns:
                    found = pattern.sub("", rest)
                    used |= {pattern.pattern} if found != rest else set()
                    rest = found
            if "pgoutput" in rest.lower():
                left.append(f"{name}:{number}: {line.strip()[:120]}")
    assert not left
    assert {one.pattern for one in patterns} == used
