"""Mappings from wire types to Arrow types, and from these to Spark types, Iceberg types and pyarrow code."""

from __future__ import annotations

ARROW_OF_WIRE = {
    "uint8": "int16", "uint16": "int32", "uint32": "int64", "uint64": "int64", "int16": "int16",
    "int32": "int32", "int64": "int64", "bool": "bool", "cstring": "string", "bytes": "binary",
    "rest": "binary",
}  # fmt: skip
"""Maps each wire type to its Arrow type; integers are signed. An int64 may have a timestamp type instead."""

SPARK_OF_ARROW = {
    "bool": "BooleanType", "int16": "ShortType", "int32": "IntegerType", "int64": "LongType",
    "float": "FloatType", "double": "DoubleType", "string": "StringType", "binary": "BinaryType",
    "date32": "DateType", "timestamp[us]": "TimestampNTZType",
    "timestamp[us, tz=UTC]": "TimestampType", "decimal128(20, 0)": "DecimalType(20, 0)",
}  # fmt: skip
"""Maps each supported Arrow type to the name of the equal Spark type."""

ICEBERG_OF_ARROW = {
    "bool": "boolean", "int16": "int", "int32": "int", "int64": "long", "float": "float",
    "double": "double", "string": "string", "binary": "binary", "date32": "date",
    "timestamp[us]": "timestamp", "timestamp[us, tz=UTC]": "timestamptz",
    "decimal128(20, 0)": "decimal(20, 0)",
}  # fmt: skip
"""Maps each supported Arrow type to the narrowest Iceberg type that holds its values."""

PYARROW_OF_ARROW = {
    "bool": "pa.bool_()", "int16": "pa.int16()", "int32": "pa.int32()", "int64": "pa.int64()",
    "string": "pa.string()", "binary": "pa.binary()", "timestamp[us]": 'pa.timestamp("us")',
    "timestamp[us, tz=UTC]": 'pa.timestamp("us", tz="UTC")',
}  # fmt: skip
"""Maps each Arrow type of a message field to the pyarrow expression that creates the type."""
