"""State that a client keeps while it reads a stream.

`StreamDecoder` decodes messages, `TransactionTracker` returns what a message does to transactions,
`Transactions` assembles messages into committed transactions, and `Tables` applies transactions to in-memory
tables.
`pgoutput.stream.check` checks whether a stream is valid.
"""

from pgoutput.stream.decoder import StreamDecoder
from pgoutput.stream.encoder import encode_for as encode_for
from pgoutput.stream.tables import Table, Tables
from pgoutput.stream.tracker import (
    TrackedTransaction as TrackedTransaction,
    TransactionEvent as TransactionEvent,
    TransactionTracker as TransactionTracker,
)
from pgoutput.stream.transactions import Change, Transaction, Transactions

__all__ = [
    "Change",
    "StreamDecoder",
    "Table",
    "Tables",
    "Transaction",
    "Transactions",
]
