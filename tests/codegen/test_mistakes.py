"""A mistake in the spec gives a one-line error with file, line, and description."""

# ruff: noqa: E501  (each mistake is one line of the table)

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from codegen.yamlfile import YamlFile
from tests.codegen.free import free
from tests.codegen.spec_copy import Run, SpecCopy
from tests.versions import KNOWN, NEWEST, OLDEST, RELEASED, UNKNOWN, WRITTEN, needs_version

FIELD = "      - {name: final_lsn, type: lsn, means: lsn, doc: The LSN of the commit record; equals commit_lsn of the Commit.}"
COLUMN = "      - {name: flags, type: ColumnFlag, doc: Whether the column is part of the replica identity.}"
COUNT = "      - {count: columns, type: uint16, doc: Number of columns.}"
LIST = "      - {name: columns, list_of: RelationColumn, doc: The columns that the publication includes.}"
LENGTH = "      - {length: content, type: uint32, doc: Length of the content.}"
BYTES = '      - {name: content, type: bytes, doc: "The content: raw bytes, in no particular encoding."}'
ABORT_LSN = "      - {name: abort_lsn, type: lsn, means: lsn, versions: 4+, when: {streaming: parallel}, doc: The LSN of the abort.}"
SUBXID = "      - {name: xid, type: xid, means: subxid, versions: 2+, when: in_stream, doc: Xid of the transaction or subtransaction.}"
OPTIONS = "      - {name: options, type: TruncateOption, doc: Options of TRUNCATE.}"
PREFIX = "      - {name: prefix, type: string, doc: The prefix of the message.}"
OLD = '          - {name: old, tag: "O", type: TupleData, means: old, doc: "The old row, under REPLICA IDENTITY FULL."}'
STRING = "  string: {wire: cstring, arrow: string, spark: StringType,"
IN_STREAM = "    versions: 2+\n    enter"
UINT8 = "  uint8: {wire: uint8, arrow: int16, spark: ShortType, doc: Unsigned 8 bits.}"
FLAG = "      KEY: {value: 1, doc: The column is part of the replica identity.}"
NULL = '      "null": {tag: n, doc: The value is NULL.}'
OTHER_TUPLE = """
  OtherData:
    count: uint16
    source: nowhere
    doc: X.
    cells:
@      "null": {tag: N, doc: X.}
      unchanged: {tag: u, doc: X.}
      text: {tag: t, length: uint32, doc: X.}
      binary: {tag: b, length: uint32, doc: X.}
"""
FULL = "      FULL: {value: f, doc: All columns; every column is then flagged as key.}"
RECORD = "      - {name: commit_lsn, type: lsn, means: lsn, doc: The LSN of the record that commits the prepared transaction.}"
WAL_START = "      - {name: wal_start, type: lsn, doc: The LSN of the change; 0 if the server gives no LSN.}"
RELATION_NAME = "      - {name: name, type: string, means: name, doc: Relation name.}"

STREAM_ABORT_XIDS = """\
      - {name: xid, type: xid, means: xid, doc: Xid of the top-level transaction.}
      - {name: subxid, type: xid, means: subxid, doc: Xid of the aborted"""
END_OF_COMMIT = """\
      - {name: commit_lsn, type: lsn, means: lsn, doc: The LSN of the commit record.}
      - {name: end_lsn, type: lsn, means: end_lsn, doc: "The end LSN"""
PREPARE_TIMES = """\
      - {name: prepare_time, type: timestamp, means: prepare_time, doc: Time when the transaction was prepared.}
      - {name: rollback_time, type: timestamp, means: time, doc"""
RELATION_NAMES = f"""\
      - {{name: namespace, type: string, doc: Namespace of the relation (empty string for pg_catalog).}}
{RELATION_NAME}"""


class Mistake(NamedTuple):
    """A replacement of `old` by `new` in a spec file, and the error that it causes.

    The error must name the line of the mark `@` in `new`. Without a mark, it must name the line of `at`, or the
    first replaced line.
    """

    name: str
    old: str
    new: str
    words: str
    """Start of the error's description."""
    after: str = ""
    """Text that precedes the replaced occurrence of `old`, if `old` occurs several times."""
    at: str = ""
    """Text whose line the error must name, if `new` has no mark `@`."""
    file: str = "pgoutput.yaml"
    hint: str = ""
    """End of the error's description, such as a suggestion."""


MISTAKES = [
    # Keys and values
    Mistake("key in a message", "    tag: B\n", "    tag: B\n@    colour: red\n", "Begin: unknown key `colour`; the keys are doc, tag, title, source,"),
    Mistake("key in a field", FIELD, "@      - {name: x, typ: lsn, doc: X.}", "Begin: unknown key `typ`; the keys are doc, name, type,", hint="; did you mean `type`?"),
    Mistake("key in an enum", FULL, "@      FULL: {valu: f, doc: X.}", "ReplicaIdentity: unknown key `valu`"),
    Mistake("key in a bit", FLAG, "@      KEY: {value: 1, doc: X, bit: 0}", "ColumnFlag: unknown key `bit`"),
    Mistake("key in a cell", NULL, '@      "null": {tag: n, doc: X, versions: 5+}', "TupleData: unknown key `versions`", after="  TupleData:"),
    Mistake("key in a type", "    oid: 16\n", "    oid: 16\n@    size: 1\n", "bool: unknown key `size`", file="types.yaml"),
    Mistake("key in an option", '      "on": {', '@      "on": {level: 3, ', "streaming: unknown key `level`", after="  streaming:"),
    Mistake("key in a version", "    server: ", "@    sever: ", f"{RELEASED[0]}: unknown key `sever`", after=f"  {RELEASED[0]}:"),
    Mistake("no doc in a message", "    doc: A row was inserted.\n", "", "Insert: `doc` is missing", at="  Insert:"),
    Mistake("no doc in a field", FIELD, "@      - {name: final_lsn, type: lsn}", "Begin.final_lsn: `doc` is missing"),
    Mistake("no doc in a side", OLD, '@          - {name: old, tag: "O", type: TupleData}', "Delete.old: `doc` is missing", after="  Delete:"),
    Mistake("no tag", "    tag: B\n", "", "Begin: `tag` is missing", at="  Begin:"),
    Mistake("number for text", "    title: Begin\n", "@    title: 7\n", "Begin: `title` takes text, not a number: quote it, \"7\""),
    Mistake("text for number", FLAG, "@      KEY: {value: one, doc: X.}", "ColumnFlag: `value` takes a number, not text"),
    Mistake("unknown role", "    role: begin\n", "@    role: start\n", "Begin: `role`: unknown value `start`; the values are begin, begin_prepare, commit,"),
    Mistake("unknown meaning", FIELD, "@" + FIELD.replace("means: lsn", "means: lns"), "Begin: `means`: unknown value `lns`; the values are xid, subxid, gid, lsn,", hint="; did you mean `lsn`?"),
    Mistake("text for a list", "    fields: []\n", "@    fields: none\n", "StreamStop: `fields` takes a list, not text", after="  StreamStop:"),
    Mistake("text for an entry", "    fields: []\n", "    fields:\n@      - none\n", "StreamStop: entry 1 of `fields` takes a mapping, not text", after="  StreamStop:"),
    Mistake("text for a message", "    fields: []\n", "    fields: []\n@  Ping: none\n", "Ping: `Ping` takes a mapping, not text", after="  StreamStop:"),
    Mistake("list for a condition", ABORT_LSN, "@" + ABORT_LSN.replace("{streaming: parallel}", "[parallel]"), "StreamAbort: `when` takes text or a mapping, not a list"),
    Mistake("type in capitals", FIELD, FIELD.replace("type: lsn", "type: LSN"), "Begin.final_lsn: unknown type `LSN`; the types are uint8,", hint="; did you mean `lsn`?"),
    Mistake("text for a record", FULL, "@      FULL: f", "ReplicaIdentity: `FULL` takes a mapping, not text"),
    Mistake("text for true", "    any_version: true\n", '@    any_version: "true"\n', "two_phase: `any_version` takes true or false, not text"),
    Mistake("duplicate key", "    tag: B\n", "    tag: B\n@    tag: X\n", "duplicate key `tag`"),
    Mistake("duplicate key in braces", FIELD, "@      - {name: a, name: b, type: lsn, doc: X.}", "duplicate key `name`"),
    Mistake("duplicate message", "  Origin:\n", "@  Commit:\n", "duplicate key `Commit`"),
    Mistake("unknown section", "structs:\n", "@strukts:\n", "unknown section `strukts`; the sections are versions,", hint="; did you mean `structs`?"),
    Mistake("section without names", "structs:\n", "@types: none\nstructs:\n", "the section `types` must be a mapping of names"),
    Mistake("no title", "title: Logical Replication Message Formats\n", "", "a file with messages needs `title`", at="# yaml-language-server"),
    Mistake("unknown protocol", "protocol: pgoutput", "@protocol: wal2json", "unknown protocol `wal2json`; the protocols are pgoutput, replication"),
    Mistake("protocol twice", "protocol: replication", "@protocol: pgoutput", "duplicate protocol `pgoutput`", file="replication.yaml"),
    Mistake("unknown wire", UINT8, "@  uint8: {wire: uint24, arrow: int32, spark: IntegerType, doc: X.}", "uint8: `wire`: unknown value `uint24`; the values are uint8, uint16,"),
    Mistake("unknown sender", "    sender: client\n", "@    sender: proxy\n", "StandbyStatusUpdate: `sender`: unknown value `proxy`; the values are server, client", after="  Standby", file="replication.yaml"),
    # Gates
    Mistake("gate that is a number", "    versions: 3+\n", "@    versions: 5\n", 'BeginPrepare: `versions` takes a range, as text: quote it, "5+" for 5 and later, or "5" for 5 only', after="  BeginPrepare:"),
    Mistake("gate of a field that is a number", FIELD, "@" + FIELD.replace("lsn,", "lsn, versions: 5,", 1), 'Begin: `versions` takes a range, as text: quote it, "5+" for 5 and later'),
    Mistake("gate of an option that is a number", '      "on": {versions: 3+', '@      "on": {versions: 3', 'two_phase: `versions` takes a range, as text: quote it, "3+" for 3'),
    Mistake("unreadable gate", "    versions: 3+\n", "@    versions: 3 and up\n", '`3 and up` is not a gate: write "2+", "2-3" or "2"', after="  BeginPrepare:"),
    Mistake("unreadable gate of a server", "    server: 11+\n", "@    server: eleven\n", "`eleven` is not a gate", after="  Truncate:"),
    Mistake("unreadable gate of a type", "    server: 10+\n", "@    server: ten\n", "`ten` is not a gate", after="  bytea:", file="types.yaml"),
    Mistake("unreadable gate of a cell", "        server: 14+\n", "@        server: 14\n", "TupleData: `server` takes a range, as text: quote it, \"14+\" for 14 and later, or \"14\" for 14 only", after="  TupleData:"),
    Mistake("backward gate", "    versions: 3+\n", "@    versions: 4-3\n", "the gate `4-3` has its larger version first", after="  BeginPrepare:"),
    Mistake("gate wider than the message", RECORD, RECORD.replace("means: lsn,", f"means: lsn, versions: {OLDEST}+,"), f"CommitPrepared.commit_lsn: the gate {OLDEST}+ is wider than that of its message, 3+"),
    Mistake("gate wider than the context", IN_STREAM, IN_STREAM.replace("2+", "3+"), "LogicalMessage.xid: the gate 2+ is wider than that of the context in_stream, 3+", at="        versions: 2+\n"),
    Mistake("gate wider than the option", ABORT_LSN, ABORT_LSN.replace("4+", "3+"), "StreamAbort.abort_lsn: the gate 3+ is wider than that of streaming = parallel, 4+"),
    Mistake("gate of the message again", FIELD, "@      - {name: x, type: lsn, versions: 1+, doc: X.}", f"Begin.x: the gate {OLDEST}+ is that of its message: leave it out"),
    Mistake("gate of no version", "    versions: 3+\n", f"@    versions: {UNKNOWN}+\n", f"BeginPrepare: no version is in the gate `{UNKNOWN}+`: the versions are {KNOWN}; add version {UNKNOWN} to `versions`, widen the gate, or remove this", after="  BeginPrepare:"),
    Mistake("field of no version", FIELD, f"@      - {{name: x, type: lsn, versions: 2-{UNKNOWN}, doc: X.}}", f"Begin.x: there is no version {UNKNOWN}: the versions are {KNOWN}; write `2+`, or add it"),
    Mistake("option of no version", '      "on": {versions: 3+', f'@      "on": {{versions: {UNKNOWN}+', f"two_phase.on: no version is in the gate `{UNKNOWN}+`"),
    Mistake("context of no version", IN_STREAM, "@" + IN_STREAM.replace("2+", f"{UNKNOWN}+"), f"in_stream: no version is in the gate `{UNKNOWN}+`"),
    Mistake("envelope with versions", "    sender: client\n", "    sender: client\n@    versions: 2+\n", "StandbyStatusUpdate: the messages of replication have no versions", after="  Standby", file="replication.yaml"),
    Mistake("versions in another order", f"  {RELEASED[0]}:\n", f"  {UNKNOWN}:\n", f"version {RELEASED[1]} comes after version {UNKNOWN}: sort the versions", at=f"  {RELEASED[1]}:\n"),
    Mistake("version 0", f"  {RELEASED[0]}:\n", "@  0:\n", "version 0 cannot be: the numbers of versions begin at 1"),
    Mistake("unreleased before released", "    released: true\n", "    released: false\n", f"version {RELEASED[1]} is released, version {RELEASED[0]} before it is not", at=f"  {RELEASED[1]}:", after=f"  {RELEASED[0]}:"),
    Mistake("version with a name", f"  {RELEASED[1]}:\n", "@  four:\n", "versions: `four` cannot be a name here"),
    # Names and tags
    Mistake("tag in hexadecimal", "    tag: B\n", "@    tag: 0x71\n", 'Begin: `tag` takes text, not a number, but a character: write tag: "q"'),
    Mistake("value in hexadecimal", FULL, "@      FULL: {value: 0x66, doc: X.}", 'ReplicaIdentity: `value` takes text, not a number, but a character: write value: "f"'),
    Mistake("title in hexadecimal", "    title: Begin\n", "@    title: 0x71\n", 'Begin: `title` takes text, not a number: quote it, "0x71"'),
    Mistake("struct under messages", "  Origin:\n", "@  Pair:\n    source: x\n    doc: X.\n    fields: [{name: a, type: lsn, doc: X.}]\n  Origin:\n", "Pair: `title` is missing", hint="; it has the keys of `structs`: write it in that section"),
    Mistake("enum under flags", "flags:\n", "flags:\n@  Mood: {doc: X., source: x, values: {GOOD: {value: g, doc: X.}}}\n", "Mood: ", hint="; it has the keys of `enums`: write it in that section"),
    Mistake("taken bit before the old one", FLAG, "@      HIDDEN: {value: 1, doc: X.}\n" + FLAG, "ColumnFlag.HIDDEN: 1 is not a bit of its own in 8 bits: choose 2, 4,"),
    Mistake("taken value before the old one", FULL, "@      ANY: {value: f, doc: X.}\n" + FULL, "ANY: duplicate value `f`, already that of FULL"),
    Mistake("taken tag before the old one", "  Begin:\n    tag", f"  Ping:\n@    tag: B\n    versions: {RELEASED[-1]}+\n    role: payload\n    title: Ping\n    source: x\n    doc: X.\n    fields: []\n  Begin:\n    tag", "Ping: duplicate tag `B`, already that of Begin"),
    Mistake("duplicate tag", "    tag: C\n", "@    tag: B\n", "Commit: duplicate tag `B`, already that of Begin"),
    Mistake("long tag", "    tag: B\n", "@    tag: BB\n", "Begin: the tag `BB` is not one ASCII character"),
    Mistake("tag beyond ASCII", "    tag: B\n", "@    tag: ß\n", "Begin: the tag `ß` is not one ASCII character"),
    Mistake("tag that is a quote", "    tag: B\n", "@    tag: '\"'\n", 'Begin: the tag `"` is not one ASCII character'),
    Mistake("message in snake_case", "  Origin:\n", "@  the_origin:\n", "`the_origin`: a message is named in CamelCase"),
    Mistake("enum in snake_case", "  ReplicaIdentity:\n", "@  identity:\n", "`identity`: an enum is named in CamelCase"),
    Mistake("value in small letters", FULL, FULL.replace("FULL", "full"), "`full`: a value is named in CAPITALS"),
    Mistake("scalar in CamelCase", UINT8, UINT8.replace("uint8:", "Byte:"), "`Byte`: a scalar is named in snake_case"),
    Mistake("field in CamelCase", FIELD, "@      - {name: finalLsn, type: lsn, doc: X.}", "`finalLsn`: a field is named in snake_case"),
    Mistake("Python keyword", FIELD, "@      - {name: from, type: lsn, doc: X.}", "`from`: a field cannot be named like a Python keyword or builtin"),
    Mistake("Python builtin", FIELD, "@      - {name: len, type: lsn, doc: X.}", "`len`: a field cannot be named like a Python keyword or builtin"),
    Mistake("field called type", FIELD, "@      - {name: type, type: lsn, doc: X.}", "a field cannot be named `type`: that is the name of the message"),
    Mistake("one name, two types", "structs:\n", "structs:\n  Begin:\n    source: x\n    doc: X.\n    fields: [{name: a, type: lsn, doc: X.}]\n", "`Begin`: structs has `Begin` already", at="  Begin:\n    tag"),
    Mistake("almost one name", UINT8, UINT8 + "\n  begin: {wire: uint8, arrow: int16, spark: ShortType, doc: X.}", "`Begin`: scalars has `begin` already", at="  Begin:\n    tag"),
    Mistake("taken name", "  Origin:\n", "@  Message:\n", "`Message`: a message cannot have this name"),
    Mistake("long first sentence", "    doc: A row was inserted.\n", f"@    doc: {'long ' * 22}doc.\n", "Insert: the first sentence of `doc` has 114 characters"),
    # Field lists
    Mistake("count without a type", COUNT, "@      - {count: columns, doc: Number of columns.}", "Relation.count of columns: `type` is missing: write one of uint8, uint16, uint32"),
    Mistake("count without a list", LIST + "\n", "", "Relation: a count of `columns`, but no such list follows", at=COUNT),
    Mistake("list without a count", COUNT + "\n", "", "Relation.columns: no count comes before it: write {count: columns, type: uint32, doc: …}", at=LIST),
    Mistake("count behind the list", f"{COUNT}\n{LIST}", f"@{LIST}\n{COUNT}", "Relation.columns: no count comes before it"),
    Mistake("two counts", COUNT, f"{COUNT}\n@{COUNT}", "Relation: a second count of `columns`"),
    Mistake("count with another gate", COUNT, COUNT.replace("uint16", "uint16, versions: 3+"), "Relation.columns: its count has another gate or condition", at=LIST),
    Mistake("count with a condition", COUNT, COUNT.replace("uint16", "uint16, versions: 2+, when: in_stream"), "Relation.columns: its count has another gate or condition", at=LIST),
    Mistake("misspelt count", COUNT, "@" + COUNT.replace("columns", "colums"), "Relation: a count of `colums`, but no such list follows; did you mean `columns`?"),
    Mistake("misspelt length", LENGTH, "@" + LENGTH.replace("content", "contents", 1), "LogicalMessage: a length of `contents`, but no such field of bytes follows; did you mean `content`?"),
    Mistake("length without bytes", BYTES + "\n", "", "LogicalMessage: a length of `content`, but no such field of bytes follows", at=LENGTH),
    Mistake("bytes without a length", LENGTH + "\n", "", "LogicalMessage.content: no length comes before it", at=BYTES),
    Mistake("count of text", COUNT, "@" + COUNT.replace("uint16", "string"), "Relation.count of columns: a count or length is one of uint8, uint16, uint32, not `string`"),
    Mistake("unknown type", FIELD, "@      - {name: x, type: lsm, doc: X.}", "Begin.x: unknown type `lsm`; the types are uint8, uint16,", hint="; did you mean `lsn`?"),
    Mistake("type like no other", FIELD, "@      - {name: x, type: zzzzzzzz, doc: X.}", "Begin.x: unknown type `zzzzzzzz`; the types are uint8,", hint="; define a new type in `scalars`, `enums` or `flags`"),
    Mistake("struct as a type", FIELD, "@      - {name: x, type: RelationColumn, doc: X.}", "Begin.x: `RelationColumn` is a struct: write `list_of: RelationColumn`, and before the field a count"),
    Mistake("unknown list_of", LIST, "@      - {name: columns, list_of: RelationColum, doc: X.}", "Relation.columns: lists are of integers, structs or tuples: unknown type `RelationColum`; the types are uint8,", hint="; did you mean `RelationColumn`?"),
    Mistake("list of text", LIST, "@      - {name: columns, list_of: string, doc: X.}", "Relation.columns: a list of `string` cannot be read"),
    Mistake("neither type nor list", FIELD, "@      - {name: x, doc: X.}", "Begin.x: expected exactly one of `type` and `list_of`"),
    Mistake("type and list", FIELD, "@      - {name: x, type: lsn, list_of: lsn, doc: X.}", "Begin.x: expected exactly one of `type` and `list_of`"),
    Mistake("unknown option", "    option: messages\n", "@    option: massages\n", "LogicalMessage: unknown option `massages`; the options are streaming,", hint="; did you mean `messages`?"),
    Mistake("unknown option of a field", FIELD, "@      - {name: x, type: lsn, option: speed, doc: X.}", "Begin.x: unknown option `speed`; the options are streaming, two_phase, binary, messages, origin"),
    Mistake("unknown option of a cell", "        option: binary\n", "@        option: octal\n", "TupleData.binary: unknown option `octal`; the options are streaming,", after="  TupleData:"),
    Mistake("unknown context", "        when: in_stream\n", "@        when: in_steam\n", "LogicalMessage.xid: unknown context `in_steam`; the contexts are in_stream; did you mean `in_stream`?"),
    Mistake("unknown streaming value", ABORT_LSN, ABORT_LSN.replace("parallel", "serial"), "StreamAbort.abort_lsn: `streaming`: unknown value `serial`; the values are off, on, parallel"),
    Mistake("truth value for a streaming value", ABORT_LSN, "@" + ABORT_LSN.replace("parallel", "true"), "StreamAbort: `streaming` takes a number or text, not true or false: quote it"),
    Mistake("condition on another option", ABORT_LSN, ABORT_LSN.replace("{streaming: parallel}", '{binary: "on"}'), "StreamAbort.abort_lsn: `when` takes a context or one value of streaming, not `binary`"),
    Mistake("signed 16 bits", UINT8, UINT8.replace("wire: uint8", "wire: int16"), "uint8: only a spec without the section `versions` has `wire: int16`"),
    Mistake("sized bytes", "  bytes: {wire: bytes,", "@  bytes: {wire: bytes, size: 4,", "bytes: only a spec without the section `versions` has scalars with `size`"),
    Mistake("end of a list", LIST, LIST + "\n@      - {end: columns, type: uint8, literal: 0, doc: X.}", "Relation.end of columns: only a spec without the section `versions` has lists with an `end`"),
    Mistake("literal of several bytes", "literal: 0", 'literal: "00 00"', "Commit.flags: only a spec without the section `versions` has literals of several bytes", after="  Commit:\n"),
    Mistake("length of messages", "protocol: pgoutput", "protocol: pgoutput\n@length: int32", "pgoutput: only a spec without the section `versions` has messages with a `length`"),
    Mistake("switch on a field", ABORT_LSN, ABORT_LSN.replace("{streaming: parallel}", "{subxid: 5}"), "StreamAbort.abort_lsn: `when` takes a context or one value of streaming, not `subxid`"),
    Mistake("name and count", FIELD, "@      - {name: a, count: b, type: uint8, doc: X.}", "Begin.a: an entry has exactly one of name, count, length, end, one_of"),
    Mistake("count and length", COUNT, "@      - {count: columns, length: columns, type: uint8, doc: X.}", "Relation.count of columns: an entry has exactly one of name, count, length, end, one_of"),
    Mistake("no name at all", FIELD, "@      - {type: uint8, doc: X.}", "Begin.?: an entry has exactly one of name, count, length, end, one_of"),
    Mistake("optional field", FIELD, "@      - {name: x, type: lsn, optional: true, doc: X.}", "Begin.x: only a choice (`one_of`) can be optional"),
    Mistake("tuple without a tag", '        tag: "N"\n', "", "Insert.new: a tuple needs a `tag`", after="  Insert:", at="      - name: new"),
    Mistake("tag on an integer", FIELD, "@      - {name: x, type: lsn, tag: L, doc: X.}", "Begin.x: only a tuple has a `tag` before it, `lsn` has none"),
    Mistake("long tag of a tuple", '        tag: "N"\n', "@        tag: NN\n", "Insert.new: the tag `NN` is not one ASCII character"),
    Mistake("literal out of range", "literal: 0,", "literal: 256,", "Commit.flags: a literal is a number from 0 to 255 of type uint8", after="  Commit:"),
    Mistake("literal of another type", "type: uint8, literal: 0,", "type: uint16, literal: 0,", "Commit.flags: a literal is a number from 0 to 255 of type uint8", after="  Commit:"),
    Mistake("duplicate field", FIELD, f"{FIELD}\n@{FIELD}", "Begin.final_lsn: duplicate field"),
    Mistake("duplicate field in a choice", OLD, "@" + OLD.replace("name: old", "name: key"), "Update.key: duplicate field", after="  Update:"),
    Mistake("side without a tag", OLD, '@          - {name: old, type: lsn, doc: "The old row, under REPLICA IDENTITY FULL."}', "Delete.key|old: a side of a choice is a tuple with name and tag", after="  Delete:"),
    Mistake("same tag in a choice", OLD, "@" + OLD.replace('"O"', '"K"'), "Delete.key|old: duplicate tag `K`", after="  Delete:"),
    Mistake("choice with a type", "      - one_of:\n", "@      - type: TupleData\n        one_of:\n", "Delete.key|old: a choice has only `one_of`, `optional` and `versions`, not `type`", after="  Delete:"),
    Mistake("optional choice at the end", "      - one_of:\n", "@      - optional: true\n        one_of:\n", "Delete.key|old: behind an optional choice, a tuple with another tag must follow", after="  Delete:"),
    Mistake("field behind a rest", "\n\n  PrimaryKeepalive:", "\n@      - {name: more, type: lsn, doc: X.}\n\n  PrimaryKeepalive:", "XLogData.more: nothing can follow a field that takes the rest", file="replication.yaml"),
    Mistake("field name with two types", RELATION_NAME, RELATION_NAME.replace("string", "xid"), "Relation.name: is xid here and string in Origin: one name, one type"),
    Mistake("field name with another type", "name: xid, type: xid", "name: xid, type: lsn", "Begin.xid: is lsn here and xid in LogicalMessage: one name, one type", after="  Begin:"),
    Mistake("true for the value of an option", SUBXID, SUBXID.replace("in_stream", "{streaming: true}"), "Insert: `streaming` takes a number or text, not true or false: quote it, \"true\"", after="  Insert:"),
    Mistake("number for bits", "    bits:\n", "    bits: 3\n    old:\n", "ColumnFlag: `bits` takes a mapping, not a number", after="  ColumnFlag:"),
    Mistake("bit of two bits", FLAG, "@      KEY: {value: 3, doc: X.}", "ColumnFlag.KEY: 3 is not a bit of its own in 8 bits"),
    Mistake("bit taken", "{value: 2, doc: TRUNCATE", "{value: 1, doc: TRUNCATE", "TruncateOption.RESTART_IDENTITY: 1 is not a bit of its own in 8 bits"),
    Mistake("bit beyond 8", FLAG, "@      KEY: {value: 256, doc: X.}", "ColumnFlag.KEY: 256 is not a bit"),
    Mistake("duplicate enum value", FULL, "@      FULL: {value: d, doc: X.}", "FULL: duplicate value `d`, already that of DEFAULT"),
    Mistake("long enum value", FULL, "@      FULL: {value: full, doc: X.}", "FULL: the value `full` is not one ASCII character"),
    Mistake("struct with a tuple", COLUMN, '@      - {name: x, type: TupleData, tag: "N", doc: X.}', "RelationColumn.x: a struct holds plain fields only"),
    Mistake("struct with a condition", COLUMN, "@      - {name: x, type: lsn, versions: 2+, when: in_stream, doc: X.}", "RelationColumn.x: a struct holds plain fields only"),
    Mistake("struct with a rest", "structs:\n", "structs:\n  Tail:\n    source: nowhere\n    doc: X.\n    fields:\n@      - {name: tail, type: rest, doc: X.}\n", "Tail.tail: a struct cannot hold `rest`"),
    # Roles and meanings
    Mistake("no role", "    role: begin\n", "", "Begin: `role` is missing; the roles are begin, begin_prepare, commit,", at="  Begin:"),
    Mistake("role of an envelope", "    tag: w\n", "    tag: w\n@    role: payload\n", "XLogData: only messages of the protocol pgoutput have a `role`", file="replication.yaml"),
    Mistake("meaning in an envelope", WAL_START, "@" + WAL_START.replace("type: lsn,", "type: lsn, means: lsn,"), "XLogData.wal_start: only messages of the protocol pgoutput have `means`", file="replication.yaml"),
    Mistake("meaning in a struct", COLUMN, "@" + COLUMN.replace("ColumnFlag,", "ColumnFlag, means: transactional,"), "RelationColumn.flags: a struct has no `means`"),
    Mistake("meaning of another role", FIELD, "@" + FIELD.replace("means: lsn", "means: gid"), "Begin.final_lsn: the role `begin` has no `gid`; it has xid, lsn, time"),
    Mistake("meaning of a role without any", "    fields: []\n", "    fields:\n@      - {name: xid, type: xid, means: xid, doc: X.}\n", "StreamStop.xid: the role `close_block` has no `xid`; it has none", at="      - {name: xid, type: xid, means: xid, doc: X.}", after="  StreamStop:"),
    Mistake("duplicate meaning", FIELD, f"{FIELD}\n@{FIELD.replace('final', 'first')}", "Begin.first_lsn: final_lsn means `lsn` already"),
    Mistake("required meaning is missing", FIELD, FIELD.replace(" means: lsn,", ""), "Begin: the role `begin` needs a field with `means: lsn`", at="    fields:\n" + FIELD.replace(" means: lsn,", "")),
    Mistake("required meaning in some versions only", FIELD, "@" + FIELD.replace("means: lsn,", f"means: lsn, versions: {NEWEST}+,"), "Begin.final_lsn: the role `begin` needs `lsn` in every version and everywhere: leave out `versions`"),
    Mistake("second message that describes relations", "    role: type\n", "@    role: relation\n", "Type: Relation has the role `relation` already: add fields to Relation instead"),
    Mistake("meaning of a count", COUNT, "@" + COUNT.replace("uint16,", "uint16, means: oid,"), "Relation.count of columns: only a field of message objects has `means`"),
    Mistake("meaning of a literal", "literal: 0,", "literal: 0, means: lsn,", "Commit.flags: only a field of message objects has `means`", after="  Commit:"),
    # Specs that decode every byte and mean something else
    Mistake("subxid of a change says nothing", SUBXID, "@" + SUBXID.replace(" means: subxid,", ""), "Insert.xid: a field of type xid must say what it means: add `means: subxid`, or `means: none` with the reason in `because`", after="  Insert:"),
    Mistake("subxid of a truncate says nothing", SUBXID, "@" + SUBXID.replace(" means: subxid,", ""), "Truncate.xid: a field of type xid must say", after="  Truncate:"),
    Mistake("subxid of a relation means nothing", SUBXID, SUBXID.replace("means: subxid,", "means: none, because: X.,"), "Relation: version 2 has no field with `means: subxid` and `when: in_stream`; changes that are rolled back would stay", after="  Relation:", at="    fields:\n" + SUBXID.replace("means: subxid,", "means: none, because: X.,")),
    Mistake("subxid from a later version on", SUBXID, SUBXID.replace("versions: 2+", "versions: 3+"), "Delete: version 2 has no field with `means: subxid`", after="  Delete:"),
    Mistake("subxid up to a version", SUBXID, SUBXID.replace("versions: 2+", "versions: 2-3"), "Update: version 4 has no field with `means: subxid`", after="  Update:"),
    Mistake("subxid outside stream blocks", SUBXID, "@" + SUBXID.replace(" when: in_stream,", ""), "Insert.xid: the role `insert` has `subxid` only inside stream blocks: write `when: in_stream`", after="  Insert:"),
    Mistake("xid of a logical message says nothing", "        means: xid\n", "", "LogicalMessage.xid: a field of type xid must say what it means: add `means: xid`, `means: subxid`, or `means: none`", at="      - name: xid\n"),
    Mistake("flags of a logical message say nothing", "type: MessageFlag, means: transactional,", "type: MessageFlag,", "LogicalMessage.flags: a field of type MessageFlag must say what it means: add `means: transactional`"),
    Mistake("lsn of a logical message says nothing", "{name: lsn, type: lsn, means: lsn,", "{name: lsn, type: lsn,", "LogicalMessage.lsn: a field of type lsn must say what it means", after="  LogicalMessage:"),
    Mistake("lsn of an abort says nothing", ABORT_LSN, "@" + ABORT_LSN.replace(" means: lsn,", ""), "StreamAbort.abort_lsn: a field of type lsn must say what it means: add `means: lsn`"),
    Mistake("time of an abort says nothing", "{name: abort_time, type: timestamp, means: time,", "{name: abort_time, type: timestamp,", "StreamAbort.abort_time: a field of type timestamp must say what it means: add `means: time`"),
    Mistake("prepare_end_lsn says nothing", "type: lsn, means: prepare_end_lsn,", "type: lsn,", "RollbackPrepared.prepare_end_lsn: a field of type lsn must say what it means"),
    Mistake("old row says nothing", OLD, "@" + OLD.replace(" means: old,", ""), "Update.old: a field of type TupleData must say what it means: add `means: new`, `means: old`, `means: key`", after="  Update:"),
    Mistake("tuple with another meaning", OLD, "@" + OLD.replace("means: old", "means: new"), "Delete.old: the role `delete` has no `new`", after="  Delete:"),
    Mistake("old row that means the key", OLD, "@" + OLD.replace("means: old", "means: key"), "Delete.old: key means `key` already", after="  Delete:"),
    Mistake("number that means a truth value", "type: bool, means: first_block", "type: uint8, means: first_block", "StreamStart.first_stream_segment: the meaning `first_block` needs the type bool, not uint8"),
    Mistake("truncate of one relation", "list_of: oid, means: relations,", "list_of: xid, means: relations,", "Truncate.relation_oids: the meaning `relations` needs the type oid, not a list of xid"),
    Mistake("xid and subxid swapped", STREAM_ABORT_XIDS, "@" + STREAM_ABORT_XIDS.replace("means: xid", "means: x").replace("means: subxid", "means: xid").replace("means: x,", "means: subxid,", 1), "StreamAbort.xid: subxid means `xid`, although this field has that name: correct `means`, or rename the field"),
    Mistake("lsn and end_lsn swapped", END_OF_COMMIT, END_OF_COMMIT.replace("means: lsn", "means: x").replace("means: end_lsn", "means: lsn").replace("means: x,", "means: end_lsn,"), "Commit.end_lsn: commit_lsn means `end_lsn`, although this field has that name", after="  Commit:", at="      - {name: end_lsn, type: lsn, means: lsn,"),
    Mistake("times of prepare and rollback swapped", PREPARE_TIMES, "@" + PREPARE_TIMES.replace("means: prepare_time", "means: x").replace("means: time", "means: prepare_time").replace("means: x,", "means: time,"), "RollbackPrepared.prepare_time: rollback_time means `prepare_time`, although this field"),
    Mistake("namespace that means the name", RELATION_NAMES, RELATION_NAMES.replace("type: string, means: name,", "type: string,").replace("name: namespace, type: string,", "name: namespace, type: string, means: name,"), "Relation.name: namespace means `name`, although this field has that name", at=RELATION_NAME.replace(" means: name,", "")),
    Mistake("insert with the role update", "    role: insert\n    title: Insert\n    versions: 1+\n    source: logicalrep_write_insert\n    doc: A row was inserted.\n    fields:\n", "    role: update\n    title: Insert\n    versions: 1+\n    source: logicalrep_write_insert\n    doc: A row was inserted.\n@    fields:\n", "Insert: the role `update` needs a field with `means: old` or `means: key`"),
    Mistake("update with the role insert", "    role: update\n", "    role: insert\n", "Update.key: the role `insert` has no `key`", at="            means: key\n", after="  Update:"),
    Mistake("commit with the role of a streamed commit", "    role: commit\n", "    role: commit_streamed\n", "Commit: the role `commit_streamed` needs a field with `means: xid`", at="    fields:\n      - {name: flags, type: uint8, literal: 0", after="  Commit:"),
    Mistake("streamed commit with the role commit", "    role: commit_streamed\n", "@    role: commit\n", "StreamCommit: Commit has the role `commit` in version 2 already"),
    Mistake("streamed prepare with the role prepare", "    role: prepare_streamed\n", "@    role: prepare\n", "StreamPrepare: Prepare has the role `prepare` in version 3 already"),
    Mistake("close of a block as a payload", "    role: close_block\n", "    role: payload\n", "StreamStart: version 2 has the role `open_block`, but no message with the role `close_block`", at="    role: open_block\n"),
    Mistake("prepared transactions without their commit", "    title: Commit Prepared\n    versions: 3+\n", "    title: Commit Prepared\n    versions: 4+\n", "BeginPrepare: version 3 has the role `begin_prepare`, but no message with the role `commit_prepared`", at="    role: begin_prepare\n"),
    Mistake("context left by another message", "    leave: StreamStop\n", "@    leave: StreamStart\n", "in_stream: `leave` names a message with the role `close_block` (StreamStop), not StreamStart"),
    Mistake("reason without none", FIELD, FIELD.replace("means: lsn,", "means: lsn, because: X.,"), "Begin.final_lsn: `because` is given without `means: none`: write both"),
    Mistake("none without a reason", ABORT_LSN, "@" + ABORT_LSN.replace("means: lsn,", "means: none,"), "StreamAbort.abort_lsn: `means` is given without `because: …`: write both"),
    # Vocabulary
    Mistake("wrong Spark type", UINT8, "@" + UINT8.replace("ShortType", "LongType"), "uint8: Arrow int16 and Spark LongType are not the same type: write `spark: ShortType`"),
    Mistake("wrong Arrow type", UINT8, "@" + UINT8.replace("int16", "int64").replace("ShortType", "LongType"), "uint8: uint8 needs Arrow int16"),
    Mistake("wrong Spark type of a type", "    spark: BooleanType\n", "@    spark: LongType\n", "bool: Arrow bool and Spark LongType are not the same type", file="types.yaml"),
    Mistake("duplicate oid", "    oid: 17\n", "@    oid: 16\n", "bytea: duplicate oid 16, already that of bool", file="types.yaml"),
    Mistake("oid of an array", "    oid: 17\n", "@    oid: 1000\n", "bytea: duplicate oid 1000, already that of bool", file="types.yaml"),
    Mistake("oid of a user's type", "    oid: 17\n", "@    oid: 10000\n", "bytea: 10000 is not the OID of a built-in type", file="types.yaml"),
    Mistake("new cell form", NULL, NULL + "\n@      packed: {tag: p, doc: X.}", "TupleData: cells: unknown form `packed`; the forms are null, unchanged, text, binary", after="  TupleData:"),
    Mistake("cell form gone", NULL + "\n", "", "TupleData: the cell form `null` is missing", at="    cells:", after="  TupleData:"),
    Mistake("text without a length", "{tag: t, length: uint32, doc:", "{tag: t, doc:", "TupleData.text: text and binary need a `length`"),
    Mistake("length of a cell", "{tag: t, length: uint32, doc:", "{tag: t, length: varint, doc:", "TupleData.text: a length is one of uint8, uint16, uint32, not `varint`"),
    Mistake("count of a tuple", "    count: uint16\n", "@    count: int32\n", "TupleData: a count is one of uint8, uint16, uint32, not `int32`"),
    Mistake("cell tag twice", "{tag: t, length", "{tag: n, length", "text: duplicate tag `n`, already that of null", after="  TupleData:"),
    Mistake("cell tag of another tuple", "structs:\n", OTHER_TUPLE + "\nstructs:\n", "OtherData.null: the tag is `N` here and `n` in TupleData: one form, one tag"),
    Mistake("context that is not known", "  in_stream:\n", "@  in_trance:\n", "unknown context `in_trance`; the contexts are in_stream"),
    Mistake("context without its message", "    enter: StreamStart\n", "@    enter: StreamBegin\n", "in_stream: unknown message `StreamBegin`; the messages are Begin, LogicalMessage,", hint="; did you mean `StreamAbort`?"),
    Mistake("streaming without off", '      "off": {versions: 1+', '      "never": {versions: 1+', "the option `streaming` with a value `off` is missing", after="  streaming:", at="  streaming:"),
    Mistake("unknown Arrow type", UINT8, "@" + UINT8.replace("int16", "init16"), "uint8: unknown type `init16`; the types are bool, int16, int32,", hint="; did you mean `int16`?"),
    Mistake("unused scalar", UINT8, UINT8 + "\n@" + UINT8.replace("uint8:", "byte:"), "`byte`: no field has this type; use it, or remove it"),
    Mistake("unused enum", "enums:\n", "enums:\n@  Mood: {doc: X., source: x, values: {GOOD: {value: g, doc: X.}}}\n", "`Mood`: no field has this type"),
    Mistake("unused flags", "flags:\n", "flags:\n@  Mark: {doc: X., source: x, wire: uint8, bits: {BIG: {value: 1, doc: X.}}}\n", "`Mark`: no field has this type"),
    Mistake("unused tuple", "structs:\n", OTHER_TUPLE.replace("@", "").replace("  OtherData", "@  OtherData").replace("tag: N", "tag: n") + "\nstructs:\n", "`OtherData`: no field has this type"),
    Mistake("unused struct", "structs:\n", "structs:\n@  Pair: {doc: X., source: x, fields: [{name: left, type: oid, doc: X.}]}\n", "`Pair`: no field has this type"),
    # YAML
    Mistake("colon in a doc", "    doc: A row was inserted.\n", "@    doc: A row: inserted.\n", 'the text of `doc` contains `:`: quote the whole text, doc: "…"'),
    Mistake("colon in a doc in braces", FIELD, "@" + FIELD.replace("doc: The LSN", "doc: LSN: that"), 'the text of `doc` contains `:`: quote the whole text, doc: "…"'),
    Mistake("colon at the end of a doc", FULL, "@      FULL: {value: f, doc: All of:}", 'the text of `doc` contains `:`: quote'),
    Mistake("comment in a doc", "    doc: A row was inserted.\n", "@    doc: Row # was inserted.\n", 'the text `Row` ends at a `#`: quote the whole text, doc: "…"; write a comment on a line of its own'),
    Mistake("comment in a doc in braces", FULL, "@      FULL: {value: f, doc: Column # of all.}", 'the text of `doc` contains `#`: quote the whole text, doc: "…"'),
    Mistake("comma in a doc in braces", FULL, "@      FULL: {value: f, doc: All columns, without one.}", "`without one.` has no value; if it belongs to the text before it, quote the whole text"),
    Mistake("sign in a doc", FULL, "@      FULL: {value: f, doc: `all` columns}", "YAML: found character '`' that cannot start any token; if this belongs to a text, quote the whole text"),
    Mistake("text behind quotes", "    doc: A row was inserted.\n", '@    doc: "A row" was inserted.\n', "YAML: expected <block end>, but found '<scalar>'; if this belongs to a text, quote the whole text"),
    *(
        Mistake(f"YAML's {value}", "    title: Begin\n", f"@    title: {value}\n", f"YAML reads `{value}` as {kind}, not as text: {'write true or false, or for a text ' if kind == 'bool' else ''}quote it, \"{value}\"")
        for value, kind in {
            "off": "bool", "on": "bool", "yes": "bool", "no": "bool", "True": "bool", "null": "null", "~": "null",
            "010": "int", "12:30": "int", "1_000": "int", "1.5": "float", ".inf": "float", "2024-05-01": "timestamp",
        }.items()
    ),
    Mistake("YAML's off as a key", '      "off": {versions: 1+', "@      off: {versions: 1+", "YAML reads `off` as bool", after="  streaming:"),
    Mistake("no value", "    title: Begin\n", "@    title:\n", "`title` has no value"),
    Mistake("anchor", "    title: Begin\n", "@    title: &begin Begin\n", "YAML: anchors and aliases are not supported"),
    Mistake("alias", "    title: Begin\n", "@    title: *begin\n", "YAML: anchors and aliases are not supported"),
    Mistake("merge key", "    title: Begin\n", "    title: Begin\n@    <<: {versions: 2+}\n", "merge keys are not supported"),
    Mistake("own tag", "    title: Begin\n", "@    title: !title Begin\n", "YAML reads `Begin` as !title"),
    Mistake("list as a key", "    title: Begin\n", "@    ? [a, b]\n    : Begin\n", "expected a plain name or number, found a YAML "),
    Mistake("tab behind a colon", "    title: Begin\n", "@    title:\tBegin\n", "Begin: the line has a tab: write a space"),
    Mistake("no-break space", "    title: Begin\n", "@    title:\u00a0Begin\n", "Begin: the line has a no-break space: write a plain space"),
    Mistake("no space after a colon", "    title: Begin\n", "@    title:Begin\n", "Begin: `title:` needs a space after the colon"),
    Mistake("no space after a colon in braces", FIELD, "@      - {name: x, type:lsn, doc: X.}", "Begin: `type:lsn` has no value: write a space after the colon"),
    Mistake("no colon", "    title: Begin\n", "@    title Begin\n", "Begin: `title` needs a colon: write `title: …`"),
    Mistake("no colon after a name", "  Origin:\n", "@  Origin\n", "Commit.commit_time: `Origin` needs a colon"),
    Mistake("no comma in braces", FIELD, "@      - {name: x type: lsn, doc: X.}", "Begin.x: add a comma before `type:`"),
    Mistake("no dash", FIELD, FIELD.replace("- ", "@", 1), "Begin.final_lsn: an entry of a list begins with `- `: write it before the brace"),
    Mistake("no closing quote", "    doc: A row was inserted.\n", '@    doc: "A row was inserted.\n', "Insert: a double quote opens a text here, and none closes it"),
    Mistake("sign at the start", "    versions: 3+\n", "@    versions: >=3\n", "BeginPrepare: a text cannot begin as `>=3` does: quote it", after="  BeginPrepare:"),
    Mistake("bool in a version", "    released: true\n", "@    released: yes\n", "YAML reads `yes` as bool, not as text: write true or false, or for a text quote it", after=f"  {RELEASED[0]}:"),
    Mistake("name with a hyphen", FIELD, "@      - {name: log-count, type: lsn, doc: X.}", "Begin.log-count: `log-count`: a field is named in snake_case"),
    Mistake("condition in a struct", COLUMN, "@" + COLUMN.replace("ColumnFlag,", "ColumnFlag, when: in_stream,"), "RelationColumn.flags: "),
    Mistake("tab", "    title: Begin\n", "@\ttitle: Begin\n", "a tab stands before the text: indent with spaces"),
    Mistake("indent between two levels", "    title: Begin\n", "@   title: Begin\n", "YAML: 3 spaces before `title: Begin` are no level of the lines above, which have 0 or 2 or 4: write 4"),
    Mistake("indent of a list", "    fields: []\n", "    fields:\n      - {name: a, type: lsn, doc: X.}\n@     - {name: b, type: lsn, doc: X.}\n", "YAML: 5 spaces before", after="  StreamStop:"),
    Mistake("message one level too deep", "    fields: []\n", "    fields: []\n@    Ping:\n      tag: '!'\n      doc: X.\n", "StreamStop: `Ping` is a record of its own, but stands inside StreamStop: remove two spaces", after="  StreamStop:"),
    Mistake("message at the top", "    fields: []\n", "    fields: []\n@Ping:\n  tag: '!'\n  doc: X.\n", "unknown section `Ping`; the sections are versions,", after="  StreamStop:", hint="if it is a record of the section above, write two more spaces before each of its lines"),
    Mistake("fields not indented", "    fields: []\n", "    fields: []\n@  Ping:\n  tag: '!'\n", "`Ping` has no value: write one, or indent the lines that belong to it", after="  StreamStop:"),
    Mistake("new message without versions", "    fields: []\n", "    fields: []\n@  Ping:\n    tag: '!'\n    role: payload\n    title: Ping\n    source: x\n    doc: X.\n    fields: [{name: xid, type: xid, means: subxid, when: in_stream, doc: X.}]\n", "released-message-added: ", after="  StreamStop:", hint=f"Ping is new: write `versions: {RELEASED[-1] + 1}+`"),
    Mistake("subxid of a payload outside stream blocks", "        means: xid\n        versions: 2+\n        when: in_stream\n", "        means: subxid\n        versions: 2+\n", "LogicalMessage.xid: the role `payload` has `subxid` only inside stream blocks", at="      - name: xid\n"),
    Mistake("meaning that a payload has not", "means: lsn, doc: The end LSN of the message's WAL record", "means: end_lsn, doc: The end LSN of the message's WAL record", "LogicalMessage.lsn: the role `payload` has no `end_lsn`; it has xid, subxid, lsn, transactional; if the runtime needs nothing of it, write `means: none`"),
    Mistake("broken YAML", FIELD, "@      - {name: x, type lsn, doc: ]", "Begin.x: the line opens a brace `{` and does not close it: add `}`"),
    Mistake("control character", "    title: Begin\n", "@    title: Be\x07gin\n", "YAML: special characters are not allowed"),
    Mistake("two documents", "structs:\n", "@---\nstructs:\n", "YAML: but found another document"),
    *(
        Mistake(f"colon below {name}", "    doc: A row was inserted.\n", f"    doc: {right}\n@    note: A row: inserted.\n", 'Insert: the text of `note` contains `:`')
        for name, right in {
            "a word of its own": "A row was\n      inserted",
            "two words": "A row was\n      inserted here",
            "a comment": "A row # was inserted",
            "a colon in a word": "A row was\n      inserted:here",
            "a brace": "A row\n      { was inserted",
            "a text of two lines": '"A row\n      was: inserted."',
            "a quote in a block": '|\n      it: "A row\n      was inserted.',
            "a sign": ">-\n      A row: was",
        }.items()
    ),  # the lines above the mistake are right, although they look like other mistakes
    Mistake("first line of a message too far right", "  Begin:\n    tag: B\n", "  Begin:\n@     tag: B\n", "Begin: YAML: 5 spaces before"),
    Mistake("first line of a message a level too deep", "  Begin:\n    tag: B\n", "  Begin:\n@      tag: B\n", "Begin: YAML: 6 spaces before"),
    Mistake("first line of a message not far enough", "  Begin:\n    tag: B\n", "  Begin:\n@   tag: B\n", "Begin: YAML: 3 spaces before"),
    Mistake("first line of an entry not far enough", "    fields: []\n", "    fields:\n@     - name: a\n        type: lsn\n        doc: X.\n", "StreamStop: YAML: 5 spaces before `- name: a`, but 8 before `type: lsn`: write 6", after="  StreamStop:"),
    Mistake("second line of an entry too far right", "    fields: []\n", "    fields:\n      - name: a\n@         type: lsn\n        doc: X.\n", "StreamStop.a: YAML: 9 spaces before `type: lsn` are no level of the lines above, which have 0 or 2 or 4 or 6 or 8: write 8", after="  StreamStop:"),
    Mistake("name of a message too far right", "  Origin:\n", "@   Origin:\n", "YAML: 3 spaces before"),
    Mistake("name of a message not far enough", "  Origin:\n", "@ Origin:\n", "YAML: 1 spaces before"),
    Mistake("name of the first message", "messages:\n  Begin:\n", "messages:\n@   Begin:\n", "YAML: 3 spaces before"),
    # Rules
    Mistake("key in a rule", "    roles: [close_block]\n", "    roles: [close_block]\n@    colour: red\n", "stop-without-start: unknown key `colour`; the keys are doc, source, roles,", file="rules.yaml"),
    Mistake("key in a case", "      - {when: not block, text:", "@      - {if: not block, text:", "stop-without-start: unknown key `if`; the keys are text, when, at", file="rules.yaml"),
    Mistake("unknown role of a rule", "    roles: [close_block]\n", "@    roles: [close_blok]\n", "stop-without-start: `roles[0]`: unknown value `close_blok`; the values are begin,", hint="; did you mean `close_block`?", file="rules.yaml"),
    Mistake("name of a rule", "  gid-length:\n", "@  gid_length:\n", "`gid_length`: a rule is named in kebab-case", file="rules.yaml"),
    Mistake("rule without cases", "    like: end-of-streamed\n", "", "abort-of-streamed: a rule with `roles` has `cases`, `like` or `command_line`", at="  abort-of-streamed:", file="rules.yaml"),
    Mistake("rule with two kinds of cases", "    roles: [close_block]\n", "    roles: [close_block]\n    like: gid-length\n", "stop-without-start: a rule with `roles` has `cases`, `like` or `command_line`", at="  stop-without-start:", file="rules.yaml"),
    Mistake("like an unknown rule", "    like: end-of-streamed\n", "@    like: end-of-stream\n", "abort-of-streamed: unknown rule `end-of-stream`; the rules are", hint="; did you mean `end-of-streamed`?", file="rules.yaml"),
    Mistake("like a rule about other fields", "    like: end-of-streamed\n", "@    like: gid-length\n", "abort-of-streamed: unknown word `gid`; the words are", file="rules.yaml"),
    Mistake("case of a rule without roles", "    source: WalSndPrepareWrite, WalSndKeepalive\n", "    source: X\n@    cases: [{text: X}]\n", "envelope: a rule that the decoder checks has no `cases`", file="rules.yaml"),
    Mistake("each of another role", "    roles: [relation, type]\n    like", "    roles: [relation, type]\n@    each: relations\n    like", "description-in-transaction: messages with the role `relation` have no `relations`", file="rules.yaml"),
    Mistake("case after one without a condition", "      - {when: not open, text: no stream block is open}", "@      - {text: no stream block is open}", "stop-without-start: only the last case has no `when`", file="rules.yaml"),
    Mistake("cases about envelopes", "    envelope: true\n", "@    envelope: true\n    cases: [{text: X}]\n", "envelope-order: a rule about envelopes has no `cases`: Python code checks it", after="  envelope-order:", file="rules.yaml"),
    Mistake("option that the page does not know", "    needs: not two_phase\n", "@    needs: not binary\n", "two-phase-off: the protocol explorer does not know the option `binary`: add `command_line`", file="rules.yaml"),
    Mistake("unreadable expression", "when: not block,", "when: not not(,", "stop-without-start: `not not(` is not an expression: ", file="rules.yaml"),
    Mistake("statement for an expression", "when: xid < 3,", "when: xid + 3,", "xid-normal: `xid + 3` cannot be used here", file="rules.yaml"),
    Mistake("unknown word", "when: not block,", "when: not blok,", "stop-without-start: unknown word `blok`; the words are streamed,", hint="; did you mean `block`?", file="rules.yaml"),
    Mistake("meaning of no message", "when: not block,", "when: not block and gid,", "stop-without-start: unknown word `gid`", file="rules.yaml"),
    Mistake("unknown attribute", "{opener.lsn}, not {lsn}\"}\n      - {when", "{opener.lsm}, not {lsn}\"}\n      - {when", "commit-as-begun: unknown attribute `lsm`; the attributes are xid,", hint="; did you mean `lsn`?", after="  commit-as-begun:", file="rules.yaml"),
    Mistake("attribute of a number", "when: xid < 3,", "when: xid.lsn < 3,", "xid-normal: xid has no attributes, such as `lsn`", file="rules.yaml"),
    Mistake("unknown function", "when: byte_length(gid) > 199,", "when: length(gid) > 199,", "gid-length: unknown function `length`; the functions are precedes, byte_length", hint="; did you mean `byte_length`?", file="rules.yaml"),
    Mistake("argument of another type", "when: byte_length(gid) > 199,", "when: byte_length(xid) > 199,", "gid-length: `byte_length` takes gid, not xid", file="rules.yaml"),
    Mistake("comparison of two types", "when: xid < 3,", "when: xid < last_lsn,", "xid-normal: xid < lsn is no comparison", file="rules.yaml"),
    Mistake("element of another type", "when: gid in finished_gids,", "when: xid in finished_gids,", "resolved-twice: the element is xid, not gid", file="rules.yaml"),
    Mistake("element of no set", "when: gid in finished_gids,", "when: gid in gid,", "resolved-twice: `in` is for sets and maps, not for gid", file="rules.yaml"),
    Mistake("key of another type", "{gid_by_xid[xid]}, not", "{gid_by_xid[gid]}, not", "resolved-gid: the key is gid, not xid", file="rules.yaml"),
    Mistake("key of no map", "{gid_by_xid[xid]}, not", "{xid[xid]}, not", "resolved-gid: only maps have keys, and only lists an element [-1]; this is xid", file="rules.yaml"),
    Mistake("set for a condition", "when: gid in finished_gids,", "when: finished_gids,", "resolved-twice: `finished_gids` is no condition: its type is set", file="rules.yaml"),
    Mistake("no role after is", "    unless: opener is not begin\n", "@    unless: opener is not Begin\n", "commit-as-begun: unknown role `Begin`; the roles are begin,", hint="; did you mean `begin`?", file="rules.yaml"),
    Mistake("is for a number", "when: xid < 3,", "when: xid is 3,", "xid-normal: `xid is 3`: after `is` comes None, or for `message` and `opener` a role", file="rules.yaml"),
    Mistake("unknown word in needs", "    needs: version >= 3\n", "@    needs: proto_version >= 3\n", "empty-transaction: unknown word `proto_version`; the words are version, streaming,", file="rules.yaml"),
    Mistake("unknown field", "at: gid, text: \"a gid", "at: relation, text: \"a gid", "gid-length: unknown field `relation`", file="rules.yaml"),
    Mistake("count of a text", "at: gid, text: \"a gid", "at: gid.count, text: \"a gid", "gid-length: unknown field `gid.count`; the fields are tag, xid, gid,", file="rules.yaml"),
    Mistake("brace without an end", "must be 0 in a stream block, not {lsn:number}", "must be 0, not {lsn", "origin-lsn-in-block: `{lsn`: braces have an expression without spaces: {xid}, {lsn:name} or {lsn:number}", file="rules.yaml"),
    Mistake("set in a text", "not {lsn:number}", "not {finished_gids}", "origin-lsn-in-block: `{finished_gids}` cannot be shown in a text: its type is set", file="rules.yaml"),
    Mistake("name of a value without a field", "not {lsn:number}", "not {last_lsn:name}", "origin-lsn-in-block: `last_lsn` has no field name: only a field of the message or of `opener` has one, as in {lsn:name}", file="rules.yaml"),
]  # fmt: skip


def make_mistake(spec: SpecCopy, mistake: Mistake) -> int:
    """Make a mistake in a copy of the spec; return the number of the line that the error must name."""
    text, new, at = spec.read(mistake.file), free(mistake.new, yaml=True), free(mistake.at, yaml=True)
    # A version without captures can have what is unique before it.
    assert mistake.after or text.count(mistake.old) == 1 or NEWEST > WRITTEN, (
        "`old` is ambiguous: set `after`"
    )
    start = text.index(mistake.old, text.index(mistake.after))
    text = text[:start] + new.replace("@", "") + text[start + len(mistake.old) :]
    spec.write(text, mistake.file)
    position = text.index(at) if at else start + max(new.find("@"), 0)
    return text.count("\n", 0, position) + 1


def read_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


NO_GATE = Mistake(
    "no gate in a context",
    "        versions: 2+\n",
    "",
    "LogicalMessage.xid: the gate 1+ is wider than that of the context in_stream, 2+",
    at="      - name: xid",
)


@pytest.mark.parametrize(
    "mistake",
    [*MISTAKES, pytest.param(NO_GATE, marks=needs_version(1))],
    ids=lambda mistake: mistake.name.replace(" ", "-"),
)
def test_a_mistake_gives_one_line_with_its_place(
    run: Run, spec: SpecCopy, tmp_path: Path, mistake: Mistake
) -> None:
    line = make_mistake(spec, mistake)
    before = read_files(spec.folder)
    result = run("--spec", spec.folder, "--out", tmp_path / "out")
    assert (result.code, result.out) == (1, "")
    place, text = re.fullmatch(r"(.*?:\d+): (.+)\n", result.err).groups()  # type: ignore[union-attr]
    assert place == f"{spec.folder / mistake.file}:{line}"
    # The error may name the message or field where `words` do not.
    owner, words = re.match(
        r"(?:(?!YAML)([\w-]+)[\w.|-]*: )?(.*)", free(mistake.words, yaml=True), re.DOTALL
    ).groups()  # type: ignore[union-attr]
    assert re.match(rf"([^ ]+: )?({owner or ''}[^ ]*: )?{re.escape(words)}", text), text
    assert text.endswith(mistake.hint)
    assert not (tmp_path / "out").exists()
    assert read_files(spec.folder) == before


def error_of(run: Run, spec: SpecCopy, tmp_path: Path) -> str:
    """Run the generator; check that it refuses the spec and writes nothing; return its error message."""
    result = run("--spec", spec.folder, "--out", tmp_path / "out")
    assert (result.code, result.out) == (1, "")
    assert not (tmp_path / "out").exists()
    return result.err


def test_the_unchanged_spec_is_accepted(run: Run, spec: SpecCopy, tmp_path: Path) -> None:
    assert run("--spec", spec.folder, "--out", tmp_path / "out").code == 0


def test_a_message_in_two_files_is_refused(run: Run, spec: SpecCopy, tmp_path: Path) -> None:
    spec.replace("  XLogData:\n", "  Begin:\n", "replication.yaml")
    line = spec.read("replication.yaml").split("  Begin:\n")[0].count("\n") + 1
    expected = f"{spec.folder}/replication.yaml:{line}: messages: duplicate `Begin`, already in "
    assert error_of(run, spec, tmp_path) == f"{expected}{spec.folder}/pgoutput.yaml\n"


def test_a_file_that_is_not_utf_8_is_refused(run: Run, spec: SpecCopy, tmp_path: Path) -> None:
    (spec.folder / "types.yaml").write_bytes(b"types:\n  caf\xe9:\n")
    expected = f"{spec.folder}/types.yaml:2: not UTF-8 text: invalid continuation byte\n"
    assert error_of(run, spec, tmp_path) == expected


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("x: " + "[" * 5000, "YAML is nested too deep"),
        ("x: " + "[" * 400 + "]" * 400, "YAML is nested too deep"),
        ('types:\n  "\\ud800": 1\n', "the text contains a surrogate, which is not a character"),
        (f"types: {'9' * 5000}\n", "YAML reads `"),
    ],
    ids=["open", "deep", "surrogate", "huge"],
)
def test_hostile_yaml_is_refused(run: Run, spec: SpecCopy, tmp_path: Path, text: str, what: str) -> None:
    spec.write(text, "types.yaml")
    assert what in error_of(run, spec, tmp_path)


def test_a_comment_behind_a_number_and_a_sign_in_quotes_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / "types.yaml"
    path.write_text('# A comment\na: 1 # b\nc: "x: y # z"\nd: >-\n  x: y # z\n# End\n')
    assert YamlFile(path).data == {"a": 1, "c": "x: y # z", "d": "x: y # z"}


@pytest.mark.parametrize("text", ["", "\n", "# nothing\n"])
def test_an_empty_file_is_refused(run: Run, spec: SpecCopy, tmp_path: Path, text: str) -> None:
    spec.write(text, "types.yaml")
    assert error_of(run, spec, tmp_path) == f"{spec.folder}/types.yaml:1: the file is empty\n"


@pytest.mark.parametrize("text", ["- a\n", "words\n"])
def test_a_file_that_is_not_a_mapping_is_refused(run: Run, spec: SpecCopy, tmp_path: Path, text: str) -> None:
    spec.write(text, "types.yaml")
    expected = f"{spec.folder}/types.yaml:1: the top of the file must be a mapping\n"
    assert error_of(run, spec, tmp_path) == expected


def test_a_protocol_without_messages_is_refused(run: Run, spec: SpecCopy, tmp_path: Path) -> None:
    spec.write("protocol: pgoutput\n" + spec.read("types.yaml"), "types.yaml")
    expected = "the protocol has no messages: add the section `messages`\n"
    assert error_of(run, spec, tmp_path).endswith(expected)


def test_a_missing_protocol_is_refused(run: Run, spec: SpecCopy, tmp_path: Path) -> None:
    (spec.folder / "replication.yaml").unlink()
    expected = f"{spec.folder}/pgoutput.yaml:1: no file has the messages of the protocol `replication`\n"
    assert error_of(run, spec, tmp_path) == expected


def test_a_spec_without_a_released_version_is_refused(run: Run, spec: SpecCopy, tmp_path: Path) -> None:
    spec.write(spec.read().replace("released: true", "released: false"))
    assert error_of(run, spec, tmp_path).endswith(
        ": no version is released: the first one must be, with `released: true`\n"
    )


@pytest.mark.parametrize("exists", [True, False])
def test_a_folder_without_a_spec_is_refused(run: Run, tmp_path: Path, exists: bool) -> None:
    folder = tmp_path / "spec"
    if exists:
        folder.mkdir()
    result = run("--spec", folder, "--out", tmp_path / "out")
    expected = f"{folder}: no spec found: expected a folder with *.yaml files\n"
    assert result == (1, "", expected)
