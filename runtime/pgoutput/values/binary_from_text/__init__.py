"""Convert values from text to binary format, as PostgreSQL's input and send functions together.

The conversion reverses `pgoutput.values.to_text`. It also accepts times in time zones other than UTC. Each
type has a function of its own (an `InputFunction`), named after the server's input function.
"""

from pgoutput.values.binary_from_text.inputs import encode_binary, to_binary

__all__ = ["encode_binary", "to_binary"]
