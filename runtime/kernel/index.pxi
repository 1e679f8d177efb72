# Where the fields and cells of a batch of messages are


cdef class Index

# Returns where a message ends, which has to be where it is said to end; NULL if the message is invalid.
ctypedef const uint8_t* (*_Indexer)(Index, Py_ssize_t, const uint8_t*, const uint8_t*) noexcept nogil

cdef _Indexer INDEXERS[LAST_VERSION + 1][256]  # by protocol version and tag; generated code fills it in


@cython.final
cdef class Index:
    """Where the fields and cells of a batch of messages are: the index of `logicalrep._index.kernel`.

    Args:
        offsets: Offsets of the messages in `content`, then the end of the last message: int32 or int64.
        content: The bytes of the messages.
        validity: A bitmap of the messages that are not NULL, or None.
        bit: Offset of the first message in the bitmap.
        versions: For each first byte of a message, the protocol version with its form; 0 if there is none.
        in_stream: Whether the first message is inside a stream block; or a byte for each message.
        streaming: Index of the value of the option `streaming`.

    Raises:
        ValueError: The offsets are not inside the content.
        OverflowError: The messages have more than 4 GB.
    """

    cdef const uint8_t[::1] content
    cdef const uint8_t* data  # where the first message begins
    cdef const uint8_t* end  # where the content ends
    cdef Py_ssize_t rows
    cdef Py_ssize_t n_cells
    cdef int streaming
    cdef bint in_stream
    cdef bint lacks_memory
    cdef int64_t* values[SLOTS]
    cdef uint8_t* there[SLOTS]
    cdef int8_t absent[SLOTS]  # value of rows that do not have it
    cdef list slots
    cdef Buffer tag_bytes
    cdef Buffer kind_bytes
    cdef Buffer cell_places
    cdef Buffer refused

    def __init__(self, offsets, content, validity, Py_ssize_t bit, bytes versions, in_stream, int streaming):
        cdef const int32_t[::1] narrow
        cdef const int64_t[::1] wide
        cdef const uint8_t[::1] bits = validity
        cdef const uint8_t[::1] contexts = None
        cdef bint has_bits = validity is not None
        cdef Py_ssize_t rows, row
        cdef int64_t start, end, origin
        cdef int64_t size = len(content)
        cdef const uint8_t* data
        cdef bint is_wide = memoryview(offsets).itemsize == 8
        cdef const uint8_t* by_tag = versions
        cdef _Indexer indexer
        cdef uint8_t* tags
        cdef int64_t* refused
        cdef Py_ssize_t kinds_before
        cdef bint done
        self.content = content
        if is_wide:
            wide = offsets
            rows = wide.shape[0] - 1
        else:
            narrow = offsets
            rows = narrow.shape[0] - 1
        if rows < 0:
            raise ValueError("offsets has an entry more than there are messages")
        if len(versions) != 256 or max(versions) > LAST_VERSION:
            raise ValueError(f"versions has an entry for each byte, {LAST_VERSION} at most")
        if has_bits and bits.shape[0] * 8 < bit + rows:
            raise ValueError("the validity bitmap ends before the messages do")
        cdef bint has_contexts = not isinstance(in_stream, bool)
        if not has_contexts:
            self.in_stream = in_stream
        else:
            contexts = in_stream
            if contexts.shape[0] != rows:
                raise ValueError("in_stream has an entry for each message")
        self.rows = rows
        self.streaming = streaming
        self.slots = [None] * (2 * SLOTS)
        origin = (wide[0] if is_wide else narrow[0]) if rows else 0
        if not 0 <= origin <= size:
            raise ValueError(f"the offset {origin} is not inside the content")
        data = &self.content[0] if size else NULL
        self.data = data + origin
        self.end = data + size
        self.tag_bytes = filled_buffer(rows, 0)
        self.kind_bytes = new_buffer(8 * rows)
        self.cell_places = new_buffer(32 * rows)
        self.refused = new_buffer(0)
        tags = self.tag_bytes.data
        with nogil:
            for row in range(rows):
                if is_wide:
                    start, end = wide[row], wide[row + 1]
                else:
                    start, end = narrow[row], narrow[row + 1]
                if start < origin or end < start or end > size:
                    with gil:
                        raise ValueError(f"row {row}: the offsets {start} and {end} are not inside the content")
                if end - origin > 0xFFFFFFFFLL:
                    with gil:
                        raise OverflowError("the messages have more than 4 GB: give fewer")
                if has_bits and not bits[(bit + row) >> 3] >> ((bit + row) & 7) & 1:
                    continue
                if has_contexts:
                    self.in_stream = contexts[row]
                kinds_before = self.kind_bytes.size
                done = False
                if end > start:
                    indexer = INDEXERS[by_tag[data[start]]][data[start]]
                    done = indexer != NULL and indexer(self, row, data + start + 1, data + end) == data + end
                if done:
                    tags[row] = data[start]
                    if tags[row] == STREAM_START:
                        done = not self.in_stream
                        self.in_stream = True
                    elif tags[row] == STREAM_STOP:
                        done = self.in_stream
                        self.in_stream = False
                if not done:
                    tags[row] = 0
                    _forget(self, row, kinds_before)
                    if self.lacks_memory or not reserve(self.refused, 16):
                        with gil:
                            raise MemoryError
                    refused = <int64_t*>(self.refused.data + self.refused.size)
                    refused[0] = row
                    refused[1] = self.in_stream
                    self.refused.size += 16
                    # What follows a damaged Stream Start is inside its stream block all the same.
                    if not has_contexts and end > start and data[start] == STREAM_START and by_tag[STREAM_START]:
                        self.in_stream = True
        self.n_cells = self.kind_bytes.size

    def tags(self):
        """Tag of each message, 0 for NULL and invalid messages; a buffer of uint8."""
        return self.tag_bytes

    def kinds(self):
        """Tag of each cell; a buffer of uint8."""
        return self.kind_bytes

    def refusals(self):
        """Rows of invalid messages, each followed by 1 if it is inside a stream block; a buffer of int64."""
        return self.refused

    def ends_in_stream(self):
        """Whether a stream block is open after the last message."""
        return self.in_stream

    def slot(self, str name):
        """Return the values of a field: a buffer of int64, and one of uint8, 1 for messages with the field.

        The value of a string or of bytes is their offset; `…_size` is their size. The value of a tuple is the
        number of its first cell, or -1 without the tuple (the second buffer is 0 for tuples); `…_size` is its
        number of cells. The value of a list of tuples is the number of its first cell; `…_count` is the number
        of tuples, and `…_size` the number of cells in each tuple, or -1 if they differ.

        Returns:
            None if no message has the field.
        """
        cdef int slot = SLOT_NUMBERS[name]
        return None if self.slots[slot] is None else (self.slots[slot], self.slots[SLOTS + slot])


# Generated code calls what follows: an indexer of a message keeps its fields, in their order


cdef inline bint keep(Index index, Py_ssize_t row, int slot, int64_t value) noexcept nogil:
    """Keep a value of a message; return False if there is no memory."""
    if index.values[slot] == NULL and not _open_slot(index, slot, 0):
        return False
    index.values[slot][row] = value
    index.there[slot][row] = 1
    return True


cdef inline const uint8_t* keep_bytes(
    Index index, Py_ssize_t row, int slot, const uint8_t* at, const uint8_t* end, Py_ssize_t size
) noexcept nogil:
    """Keep where `size` bytes are; return where they end, or NULL if the message has fewer."""
    if size > end - at or not keep(index, row, slot, at - index.data) or not keep(index, row, slot + 1, size):
        return NULL
    return at + size


cdef inline const uint8_t* keep_string(
    Index index, Py_ssize_t row, int slot, const uint8_t* at, const uint8_t* end
) noexcept nogil:
    """Keep where a string is; return where its zero byte ends, or NULL if it has none."""
    cdef const uint8_t* zero = <const uint8_t*>memchr(at, 0, end - at)
    if zero == NULL or keep_bytes(index, row, slot, at, zero, zero - at) == NULL:
        return NULL
    return zero + 1


cdef inline const uint8_t* pass_string(const uint8_t* at, const uint8_t* end) noexcept nogil:
    """Return where a string's zero byte ends, or NULL if it has none."""
    cdef const uint8_t* zero = <const uint8_t*>memchr(at, 0, end - at)
    if zero == NULL:
        return NULL
    return zero + 1


cdef inline const uint8_t* pass_numbers(
    const uint8_t* at, const uint8_t* end, Py_ssize_t count, Py_ssize_t size
) noexcept nogil:
    """Return where `count` numbers of `size` bytes end, or NULL if the message has fewer."""
    if count > (end - at) // size:
        return NULL
    return at + count * size


ctypedef const uint8_t* (*_Passer)(const uint8_t*, const uint8_t*) noexcept nogil


cdef inline const uint8_t* pass_structs(
    const uint8_t* at, const uint8_t* end, Py_ssize_t count, _Passer pass_struct
) noexcept nogil:
    """Return where `count` structs end, or NULL if one of them is invalid."""
    while count and at != NULL:
        at = pass_struct(at, end)
        count -= 1
    return at


# The numbers are the bytes of a tuple's number of columns, and of the lengths of its cells in text and in
# binary format. They are the same in all calls, so that the C compiler puts them into the functions.


cdef inline const uint8_t* index_tuple(
    Index index, Py_ssize_t row, int slot, const uint8_t* at, const uint8_t* end, int count, int text, int binary
) noexcept nogil:
    """Keep the cells of a tuple; return where it ends, or NULL if it is invalid. The next slot has its size."""
    cdef Py_ssize_t first = index.kind_bytes.size
    if index.values[slot] == NULL and not (_open_slot(index, slot, -1) and _open_slot(index, slot + 1, 0)):
        return NULL
    index.values[slot][row] = first
    at = _index_cells(index, at, end, count, text, binary)
    index.values[slot + 1][row] = index.kind_bytes.size - first
    return at


cdef inline const uint8_t* index_tuples(
    Index index, Py_ssize_t row, int slot, const uint8_t* at, const uint8_t* end, Py_ssize_t n_tuples,
    int count, int text, int binary
) noexcept nogil:
    """Keep the cells of several tuples; return where they end, or NULL if one of them is invalid.

    The next slot has the number of cells in each tuple, or -1 if the tuples differ; the slot after that, the
    number of tuples.
    """
    cdef Py_ssize_t size = 0, first, i
    if index.values[slot] == NULL and not (
        _open_slot(index, slot, -1) and _open_slot(index, slot + 1, 0) and _open_slot(index, slot + 2, 0)
    ):
        return NULL
    index.values[slot][row] = index.kind_bytes.size
    for i in range(n_tuples):
        first = index.kind_bytes.size
        at = _index_cells(index, at, end, count, text, binary)
        if at == NULL:
            return NULL
        if i and index.kind_bytes.size - first != size:
            size = -1
        else:
            size = index.kind_bytes.size - first
    index.values[slot + 1][row] = size
    index.values[slot + 2][row] = n_tuples
    return at


cdef inline const uint8_t* _index_cells(
    Index index, const uint8_t* at, const uint8_t* end, int count_size, int text, int binary
) noexcept nogil:
    """Keep the cells of a tuple; return where it ends, or NULL if it is invalid."""
    cdef const uint8_t* data = index.data
    cdef uint8_t* kinds
    cdef uint32_t* places
    cdef Py_ssize_t count, length, i
    cdef uint8_t kind
    if end - at < count_size:
        return NULL
    count = <Py_ssize_t>get_unsigned(at, count_size)
    at += count_size
    # A cell has at least its tag, so that memory is not in proportion to a wrong number of cells.
    if count > end - at:
        return NULL
    if not reserve(index.kind_bytes, count) or not reserve(index.cell_places, 4 * count):
        index.lacks_memory = True
        return NULL
    kinds = index.kind_bytes.data + index.kind_bytes.size
    places = <uint32_t*>(index.cell_places.data + index.cell_places.size)
    index.kind_bytes.size += count
    index.cell_places.size += 4 * count
    for i in range(count):
        if at >= end:
            return NULL
        kind = at[0]
        kinds[i] = kind
        places[i] = <uint32_t>(at - data)
        if kind == CELL_TEXT:
            if end - at < 1 + text:
                return NULL
            length = <Py_ssize_t>get_unsigned(at + 1, text)
            at += 1 + text
            if length > end - at:
                return NULL
            at += length
        elif kind == CELL_NULL:
            at += 1
        elif kind == CELL_UNCHANGED:
            at += 1
        elif kind == CELL_BINARY:
            if end - at < 1 + binary:
                return NULL
            length = <Py_ssize_t>get_unsigned(at + 1, binary)
            at += 1 + binary
            if length > end - at:
                return NULL
            at += length
        else:
            return NULL
    return at


cdef bint _open_slot(Index index, int slot, int absent) noexcept with gil:
    """Make room for a value of each message, which is `absent` (0 or -1) first; return False if there is none."""
    cdef Buffer values, there
    try:
        values = filled_buffer(8 * index.rows, absent)
        there = filled_buffer(index.rows, 0)
    except MemoryError:
        index.lacks_memory = True
        return False
    index.slots[slot], index.slots[SLOTS + slot] = values, there
    index.values[slot] = <int64_t*>values.data
    index.there[slot] = there.data
    index.absent[slot] = absent
    return True


cdef void _forget(Index index, Py_ssize_t row, Py_ssize_t kinds) noexcept nogil:
    """Drop the values of an invalid message."""
    cdef int slot
    for slot in range(SLOTS):
        if index.values[slot] != NULL:
            index.there[slot][row] = 0
            index.values[slot][row] = index.absent[slot]
    index.kind_bytes.size = kinds
    index.cell_places.size = 4 * kinds


def find_tuples(
    const int64_t[::1] first, const int64_t[::1] oids, const int64_t[::1] keys, const int64_t[::1] numbers
):
    """Return the tuples of messages, and the relation of each tuple.

    Args:
        first: For each message, the number of the first cell of its tuple; -1 without a tuple.
        oids: For each message, the OID of its relation.
        keys: For each relation, in ascending order, its OID shifted left by 31 bits, plus the row from which it
            is valid; the first row is 1.
        numbers: For each relation, its number.

    Returns:
        Three buffers of int64: the rows of the tuples, their first cells, and the numbers of their relations;
        -1 for a tuple without a relation.

    Raises:
        ValueError: `oids` does not have an entry for each message.
    """
    cdef Py_ssize_t room = 8 * first.shape[0], n = 0, row, low, high, middle
    cdef Py_ssize_t n_keys = min(keys.shape[0], numbers.shape[0]), before = -1
    cdef Buffer rows = new_buffer(room)
    cdef Buffer firsts = new_buffer(room)
    cdef Buffer relations = new_buffer(room)
    cdef int64_t* row_of = <int64_t*>rows.data
    cdef int64_t* first_of = <int64_t*>firsts.data
    cdef int64_t* relation_of = <int64_t*>relations.data
    cdef int64_t key
    if oids.shape[0] != first.shape[0]:
        raise ValueError("oids has an entry for each message")
    with nogil:
        for row in range(first.shape[0]):
            if first[row] < 0:
                continue
            key = oids[row] << 31 | (row + 1)
            # Adjacent tuples mostly have the same relation: only another relation is searched for.
            if (before >= 0 and keys[before] >= key) or (before + 1 < n_keys and keys[before + 1] < key):
                low, high = 0, n_keys
                while low < high:
                    middle = (low + high) >> 1
                    if keys[middle] < key:
                        low = middle + 1
                    else:
                        high = middle
                before = low - 1
            row_of[n] = row
            first_of[n] = first[row]
            relation_of[n] = numbers[before] if before >= 0 and keys[before] >> 31 == oids[row] else -1
            n += 1
    rows.size = firsts.size = relations.size = 8 * n
    return rows, firsts, relations
