"""The server's text to binary form: what the type's input and send functions together give.

It is the way back of `pgoutput.values.to_text`, and takes what that gives, and what servers with other
settings of TimeZone write. Each type's way is a function of the text.
"""

from pgoutput.values.binary.inputs import encode_binary, to_binary

__all__ = ["encode_binary", "to_binary"]
