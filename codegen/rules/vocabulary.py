"""Checks of the spec's protocols, scalars, enums, flags, tuples, options, contexts and built-in types."""

from __future__ import annotations

from collections.abc import Iterator

from codegen.model import PROTOCOLS, Spec
from codegen.rules.common import COUNTS, Problem, entries, tags
from codegen.tables import ARROW_OF_WIRE, SPARK_OF_ARROW
from codegen.yamlfile import unknown

_FORMS = ("null", "unchanged", "text", "binary")


def protocols(spec: Spec) -> Iterator[Problem]:
    """Check that the spec defines both protocols, `pgoutput` and `replication`."""
    for name in PROTOCOLS:
        if name not in spec.protocols:
            yield (), f"no file has the messages of the protocol `{name}`"


def types_of_tables(spec: Spec) -> Iterator[Problem]:
    """Check the Arrow and Spark types of scalars and built-in types.

    The Spark type must be the one for the Arrow type, as in `SPARK_OF_ARROW`. The Arrow type of a scalar must
    be the one for its wire type, as in `ARROW_OF_WIRE`; for int64, it may also be a timestamp.
    """
    for section, records in (("scalars", spec.scalars), ("types", spec.types)):
        for name, record in records.items():
            if record.arrow not in SPARK_OF_ARROW:
                yield (section, name, "arrow"), f"{name}: {unknown('type', record.arrow, SPARK_OF_ARROW)}"
            elif SPARK_OF_ARROW[record.arrow] != record.spark:
                text = f"Arrow {record.arrow} and Spark {record.spark} are not the same type"
                hint = f"write `spark: {SPARK_OF_ARROW[record.arrow]}`"
                yield (section, name, "spark"), f"{name}: {text}: {hint}"
    for name, scalar in spec.scalars.items():
        timestamp = scalar.wire == "int64" and scalar.arrow.startswith("timestamp")
        if scalar.arrow != ARROW_OF_WIRE[scalar.wire] and not timestamp:
            arrow = ARROW_OF_WIRE[scalar.wire]
            yield ("scalars", name, "arrow"), f"{name}: {scalar.wire} needs Arrow {arrow}"


def scalars(spec: Spec) -> Iterator[Problem]:
    """Check that only scalars of bytes have `size` or `length`, and that `null` comes with a `length`."""
    for name, scalar in spec.scalars.items():
        place, given = ("scalars", name), [key for key in ("size", "length") if getattr(scalar, key)]
        if scalar.wire != "bytes" and given:
            yield (*place, given[0]), f"{name}: only `wire: bytes` has a `{given[0]}`, not `{scalar.wire}`"
        elif len(given) > 1:
            yield (*place, "size"), f"{name}: bytes have a `size` or a `length` before them, not both"
        elif scalar.size is not None and not 0 < scalar.size < 1 << 16:
            yield (*place, "size"), f"{name}: a size is a number from 1 to 65535, not {scalar.size}"
        elif scalar.null is not None and not (scalar.length or "").startswith("int"):
            yield (*place, "null"), f"{name}: `null` needs a signed `length`, such as int32"
        elif scalar.null is not None and not -128 <= scalar.null < 0:
            yield (*place, "null"), f"{name}: the length for NULL is negative, such as -1, not {scalar.null}"


def oids(spec: Spec) -> Iterator[Problem]:
    """Check that each OID belongs to only one built-in type or array type."""
    seen: dict[int, str] = {}
    for name, builtin in spec.types.items():
        for key, oid in (("oid", builtin.oid), ("array_oid", builtin.array_oid)):
            place = ("types", name, key)
            if key == "array_oid" and oid == 0:
                continue  # the type has no array type
            if not 0 < oid < 10_000:
                yield place, f"{name}: {oid} is not the OID of a built-in type, 1 to 9999"
            elif oid in seen:
                yield place, f"{name}: duplicate {key} {oid}, already that of {seen[oid]}"
            seen[oid] = name


def likes(spec: Spec) -> Iterator[Problem]:
    """Check the key `like` of built-in types: it names another built-in type, which has no `like` itself.

    Both types must have the same `modifier`, Arrow type, Spark type and Iceberg type.
    """
    models = {name: builtin for name, builtin in spec.types.items() if builtin.like is None}
    for name, builtin in spec.types.items():
        if builtin.like is None:
            continue
        if builtin.like not in models:
            yield ("types", name, "like"), f"{name}: like: {unknown('type', builtin.like, models)}"
            continue
        for key in ("modifier", "arrow", "spark", "iceberg"):
            wanted = getattr(models[builtin.like], key)
            if getattr(builtin, key) != wanted:
                yield ("types", name, key), f"{name}: a type like {builtin.like} has `{key}: {wanted}`"


def enums_and_flags(spec: Spec) -> Iterator[Problem]:
    """Check that the values of an enum are distinct characters, and those of flags distinct bits."""
    for name, enum in spec.enums.items():
        if not enum.values:
            yield ("enums", name, "values"), f"{name}: an enum without values"
        values = {member: record.value for member, record in spec.by_age(enum.values).items()}
        yield from tags(("enums", name, "values"), values, "value")
    for name, flags in spec.flags.items():
        if not flags.bits:
            yield ("flags", name, "bits"), f"{name}: flags without bits"
        seen, bits = 0, [1 << shift for shift in range(8)]
        taken = [record.value for record in flags.bits.values()]
        for bit, record in spec.by_age(flags.bits).items():
            value = record.value
            if value not in bits or value & seen:
                free = ", ".join(map(str, (one for one in bits if one not in taken)))
                yield (
                    ("flags", name, "bits", bit, "value"),
                    f"{name}.{bit}: {value} is not a bit of its own in 8 bits: choose {free}",
                )
            seen |= value


def tuples(spec: Spec) -> Iterator[Problem]:
    """Check that a tuple has a count and all four forms of cells, each with its own tag."""
    for name, record in spec.tuples.items():
        place = ("tuples", name)
        if record.count not in COUNTS:
            text = f"{name}: a count is one of {', '.join(COUNTS)}, not `{record.count}`"
            yield (*place, "count"), text
        for form in record.cells:
            if form not in _FORMS:
                yield (
                    (*place, "cells", form),
                    f"{name}: cells: {unknown('form', form, _FORMS)}",
                )
        for form in _FORMS:
            if form not in record.cells:
                yield (*place, "cells"), f"{name}: the cell form `{form}` is missing"
        cells = {form: cell.tag for form, cell in record.cells.items()}
        yield from tags((*place, "cells"), cells, "tag")
        first, model = next(iter(spec.tuples.items()))
        for form, cell in record.cells.items():
            here = (*place, "cells", form)
            if (form in ("text", "binary")) != (cell.length is not None):
                yield here, f"{name}.{form}: text and binary need a `length`, others have none"
            if cell.length is not None and cell.length not in COUNTS:
                text = f"a length is one of {', '.join(COUNTS)}, not `{cell.length}`"
                yield (*here, "length"), f"{name}.{form}: {text}"
            if cell.tag != model.cells[form].tag:
                text = f"the tag is `{cell.tag}` here and `{model.cells[form].tag}` in {first}"
                yield (*here, "tag"), f"{name}.{form}: {text}: one form, one tag"
            if cell.option is not None and cell.option not in spec.options:
                yield (*here, "option"), f"{name}.{form}: {unknown('option', cell.option, spec.options)}"


def options_and_contexts(spec: Spec) -> Iterator[Problem]:
    """Check that the option `streaming` is defined, and that `in_stream` is the only context.

    A context is a state of the stream; `in_stream` means that a stream block is open.
    """
    if "streaming" not in spec.options or "off" not in spec.options["streaming"].values:
        yield ("options", "streaming"), "the option `streaming` with a value `off` is missing"
    for name, context in spec.contexts.items():
        if name != "in_stream":
            yield ("contexts", name), unknown("context", name, ("in_stream",))
        for key in ("enter", "leave"):
            message = getattr(context, key)
            messages = spec.protocols["pgoutput"].messages
            if message not in messages:
                yield ("contexts", name, key), f"{name}: {unknown('message', message, messages)}"


def used(spec: Spec) -> Iterator[Problem]:
    """Check that each struct, tuple, enum, set of flags and scalar is the type of a field."""
    types = {name for _, entry, _ in entries(spec) for name in (entry.type, entry.list_of)}
    for section in ("structs", "tuples", "enums", "flags", "scalars"):
        for name in getattr(spec, section):
            if name not in types:
                yield (section, name), f"`{name}`: no field has this type; use it, or remove it"
