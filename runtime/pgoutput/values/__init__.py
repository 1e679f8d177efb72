"""Column values, by the built-in types' catalog: as the server's text, and as Arrow.

A cell in text format and one in binary format of the same value give the same. A column is converted as a
whole. What its Arrow type cannot hold (infinity and years before 1 or past 9999 in dates and timestamps, NaN
in a decimal, arrays of several dimensions or with bounds of their own, text that is not UTF-8) becomes NULL
and is handed back as text.

There is a way back: from Arrow to text, and from text to binary form.
"""

from pgoutput.values.arrow import to_arrow
from pgoutput.values.binary import encode_binary, to_binary
from pgoutput.values.literals import parse_array
from pgoutput.values.text import Rescued, to_text
from pgoutput.values.types import MAX_PRECISION, arrow_type, base_types, common_type, default_type
from pgoutput.values.written import from_arrow

__all__ = [
    "MAX_PRECISION",
    "Rescued",
    "arrow_type",
    "base_types",
    "common_type",
    "default_type",
    "encode_binary",
    "from_arrow",
    "parse_array",
    "to_arrow",
    "to_binary",
    "to_text",
]
