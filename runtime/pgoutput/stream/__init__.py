"""What a reader of a stream must remember between messages.

`StreamDecoder` reads messages, `Transactions` puts them together into what was committed, `Tables` keeps
the rows that follow from it. Each takes what the one before it gives.
"""

from pgoutput.stream.decoder import StreamDecoder
from pgoutput.stream.encoder import encode_for
from pgoutput.stream.tables import Table, Tables
from pgoutput.stream.transactions import Change, Transaction, Transactions

__all__ = ["Change", "StreamDecoder", "Table", "Tables", "Transaction", "Transactions", "encode_for"]
