"""State that a client keeps while it reads a stream.

`StreamDecoder` decodes messages, `TransactionTracker` returns what a message does to transactions,
`Transactions` assembles messages into committed transactions, and `Tables` applies transactions to in-memory
tables.
`logicalrep.stream.check` checks whether a stream is valid.
"""

from logicalrep.stream.decoder import StreamDecoder
from logicalrep.stream.encoder import encode_for as encode_for
from logicalrep.stream.tables import Table, Tables
from logicalrep.stream.tracker import (
    TrackedTransaction as TrackedTransaction,
    TransactionEvent as TransactionEvent,
    TransactionTracker as TransactionTracker,
)
from logicalrep.stream.transactions import Change, Transaction, Transactions

__all__ = [
    "Change",
    "StreamDecoder",
    "Table",
    "Tables",
    "Transaction",
    "Transactions",
]
