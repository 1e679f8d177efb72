"""Convert values from binary to text format, as PostgreSQL's receive and output functions together.

Each type has a function of its own (an `OutputFunction`), named after the server's output function.
`output_function` finds the function of a type.
"""

from pgoutput.values.text_from_binary.outputs import output_function
from pgoutput.values.text_from_binary.reader import INVALID_VALUE_ERRORS, OutputFunction

__all__ = ["INVALID_VALUE_ERRORS", "OutputFunction", "output_function"]
