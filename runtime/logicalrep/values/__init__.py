"""Column values as Python objects, as the server's text, in binary format, and as Arrow arrays.

==========================  =====================================================================
function                    conversion
==========================  =====================================================================
`to_python`                 a cell to a Python object: Decimal, datetime, UUID, list, …
`to_text`                   a column of cells to the server's text
`to_arrow`, `from_arrow`    a column of cells to an Arrow array, and an Arrow array to text
`to_binary`                 a column of cells to binary format
`decode_binary`             one value from binary format to text
`encode_binary`             one value from text to binary format
`arrow_type`                the Arrow type of a column
`common_type`               the Arrow type for all values of a column whose type changed
`default_type`              the PostgreSQL type of an Arrow type
`base_types`                a relation with domains replaced by their base types
`format_float4`             a float to the server's text of a float4
`format_float8`             a float to the server's text of a float8
`format_jsonb`              a parsed JSON value to the server's text of a jsonb
`parse_array`               the elements of a one-dimensional array in text format
`quote_array_element`       an array element's text, quoted if necessary
==========================  =====================================================================

A function that takes cells returns the same for the text format and for the binary format of a value;
`to_text` lists the exceptions. `logicalrep.catalog` lists the built-in types.

The functions for Arrow arrays and Arrow types need pyarrow. All other functions work without pyarrow, in the
core install.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from logicalrep.values.binary_from_cells import encode_binary, to_binary
from logicalrep.values.builtin_types import base_types as base_types
from logicalrep.values.forms.floats import format_float4 as format_float4, format_float8 as format_float8
from logicalrep.values.literals import (
    format_jsonb as format_jsonb,
    parse_array as parse_array,
    quote_array_element as quote_array_element,
)
from logicalrep.values.python_from_cells import to_python
from logicalrep.values.text_from_cells import Rescued as Rescued, decode_binary, to_text

if TYPE_CHECKING:
    from logicalrep.values.arrow_from_cells import to_arrow
    from logicalrep.values.arrow_types import (
        UUID_TYPE as UUID_TYPE,
        arrow_type,
        common_type as common_type,
        default_type as default_type,
    )
    from logicalrep.values.fixed_width import (
        fixed_array as fixed_array,
        fixed_reader as fixed_reader,
        read_fixed_texts as read_fixed_texts,
    )
    from logicalrep.values.text_from_arrow import from_arrow

__all__ = [
    "arrow_type",
    "decode_binary",
    "encode_binary",
    "from_arrow",
    "to_arrow",
    "to_binary",
    "to_python",
    "to_text",
]

_ARROW_MODULES: Final = {
    **dict.fromkeys(("UUID_TYPE", "arrow_type", "common_type", "default_type"), "arrow_types"),
    **dict.fromkeys(("fixed_array", "fixed_reader", "read_fixed_texts"), "fixed_width"),
    "from_arrow": "text_from_arrow",
    "to_arrow": "arrow_from_cells",
}
"""By name, the module that defines the name and needs pyarrow. The module is imported at the first access to
the name."""


def __getattr__(name: str) -> Any:
    if name not in _ARROW_MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(import_module(f"{__name__}.{_ARROW_MODULES[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name not in ("numpy", "pyarrow"):
            raise
        text = f"{__name__}.{name} needs pyarrow: pip install 'logicalrep[arrow]'"
        raise ModuleNotFoundError(text, name="pyarrow") from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
