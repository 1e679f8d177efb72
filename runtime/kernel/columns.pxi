# Cells of an index as Arrow columns


cdef enum:
    _AT_ONCE = 32  # bytes that are copied for each short cell, whatever its size
    _WIDEST = 36  # bytes that a copier writes at most for a cell that is shorter, such as a uuid

cdef str _CHANGED = "the bytes of the messages have changed since they were indexed: keep them as long as they are read"


cdef inline Py_ssize_t _size_of_cell(const uint8_t* at, const uint8_t* end) noexcept nogil:
    """Return the size of a cell's value, or -1 if it is outside: another thread has changed the messages."""
    cdef Py_ssize_t size
    if end - at < CELL_HEAD:
        return -1
    size = <Py_ssize_t>get_unsigned(at + 1, CELL_LENGTH)
    return size if size <= end - at - CELL_HEAD else -1


def read_fixed(
    Index index not None, const int64_t[::1] numbers, send, str kind, int width, int64_t low, int64_t high, int precision,
    int scale, bint zone
):
    """Return cells as values of fixed width.

    Args:
        index: The index of the messages.
        numbers: Number of the cell of each row; -1 for NULL.
        send: The send function of cells in binary format, or None to leave these cells unread.
        kind, width, low, high, precision, scale, zone: The fields of `logicalrep.values.FixedReader`.

    Returns:
        The validity bitmap, the number of NULLs, the values, and the rows of unread cells (int64), which are
        NULL.

    Raises:
        IndexError: A number is not the number of a cell.
        ValueError: The bytes of the messages have changed since they were indexed.
    """
    cdef _Reader text = _text_reader(kind)
    cdef _Reader binary = _binary_reader(send)
    cdef _Type type_ = _Type(width, low, high, precision, scale, zone)
    cdef Py_ssize_t rows = numbers.shape[0], row, size, nulls = 0
    cdef Buffer valid = filled_buffer((rows + 7) // 8, 255)
    cdef Buffer values = new_buffer(rows * width)
    cdef Buffer left = new_buffer(0)
    cdef const uint32_t* places = <const uint32_t*>index.cell_places.data
    cdef const uint8_t* data = index.data
    cdef const uint8_t* end = index.end
    cdef uint8_t* bits = valid.data
    cdef uint8_t* to = values.data
    cdef const uint8_t* at
    cdef uint8_t kind_
    cdef bint done, changed = False, enough = True
    cdef _Reader reader
    _check_type(&type_)
    values.size = rows * width
    _check_numbers(index, numbers, 1)
    with nogil:
        for row in range(rows):
            done = False
            if numbers[row] >= 0:
                at = data + places[numbers[row]]
                kind_ = at[0]
                reader = NULL
                if kind_ == CELL_TEXT:
                    reader = text
                elif kind_ == CELL_BINARY:
                    reader = binary
                if reader != NULL:
                    size = _size_of_cell(at, end)
                    if size < 0:
                        changed = True
                        break
                    done = reader(at + CELL_HEAD, size, &type_, to)
                if not done and kind_ != CELL_NULL and not _note(left, row):
                    enough = False
                    break
            if not done:
                memset(to, 0, width)
                nulls += 1
                bits[row >> 3] &= ~(1 << (row & 7))
            to += width
    if changed:
        raise ValueError(_CHANGED)
    if not enough:
        raise MemoryError
    return valid, nulls, values, left


cdef int _check_type(const _Type* type_) except -1:
    if type_.width > 16 or type_.scale > 18 or not 0 <= type_.scale <= type_.precision <= 38:
        raise ValueError("no such type")
    return 0


def read_fixed_texts(
    const uint8_t[::1] data, const int32_t[::1] offsets, const uint8_t[::1] known, str kind, int width, int64_t low,
    int64_t high, int precision, int scale, bint zone
):
    """Return texts as values of fixed width.

    Args:
        data: The bytes of the texts.
        offsets: Start of each text in `data`, then the end of the last text.
        known: Bitmap of the texts that are not NULL; None if no text is NULL.
        kind, width, low, high, precision, scale, zone: The fields of `logicalrep.values.FixedReader`.

    Returns:
        As `read_fixed`; the unread rows are those whose text has not the form that a server writes.

    Raises:
        ValueError: The offsets do not ascend, or are outside of `data`.
    """
    cdef _Reader reader = _text_reader(kind)
    cdef _Type type_ = _Type(width, low, high, precision, scale, zone)
    cdef Py_ssize_t rows = offsets.shape[0] - 1, row, nulls = 0
    cdef Buffer valid = filled_buffer((rows + 7) // 8, 255)
    cdef Buffer values = new_buffer(rows * width)
    cdef Buffer left = new_buffer(0)
    cdef uint8_t* to = values.data
    cdef const uint8_t* start = &data[0] if data.shape[0] else NULL
    cdef bint is_null, ordered, enough = True
    if rows < 0:
        raise ValueError("there are fewer rows than none")
    _check_type(&type_)
    ordered = 0 <= offsets[0] and offsets[rows] <= data.shape[0]
    for row in range(rows):
        ordered = ordered and offsets[row] <= offsets[row + 1]
    if not ordered:
        raise ValueError("the offsets of an array are not in their order, or not inside its data")
    if known is not None and known.shape[0] < (rows + 7) // 8:
        raise ValueError("the null mask is too small")
    values.size = rows * width
    with nogil:
        for row in range(rows):
            is_null = known is not None and not known[row >> 3] >> (row & 7) & 1
            if is_null or not reader(start + offsets[row], offsets[row + 1] - offsets[row], &type_, to):
                if not is_null and not _note(left, row):
                    enough = False
                    break
                memset(to, 0, width)
                nulls += 1
                valid.data[row >> 3] &= ~(1 << (row & 7))
            to += width
    if not enough:
        raise MemoryError
    return valid, nulls, values, left


cdef struct _Column:
    void* values  # a Buffer; `to`, `used` and `room` are its fields
    void* left  # a Buffer
    uint8_t* bits
    int32_t* offsets
    uint8_t* to
    Py_ssize_t used
    Py_ssize_t room
    Py_ssize_t nulls
    _Copier binary

cdef enum _Outcome:
    _READ
    _CHANGES  # the messages have changed
    _LACKS_MEMORY
    _TOO_LARGE


def read_any(Index index not None, const int64_t[::1] numbers, str kind, sends):
    """Return cells as values of any width, in one or several columns.

    All columns of a row are read together, because their cells are adjacent.

    Args:
        index: The index of the messages.
        numbers: Number of the cell of each row in the first column; the next columns have the next cells. -1
            is NULL in all columns.
        kind: text; hex, for bytea; or raw: the bytes of each cell, in either format.
        sends: For each column, the argument `send` of `read_fixed`.

    Returns:
        For each column the results of `read_fixed`, with the offsets (int32) before the values.

    Raises:
        IndexError: A number is not the number of a cell.
        ValueError: The bytes of the messages have changed since they were indexed.
        OverflowError: A column has more than 2 GB.
    """
    cdef _Copier text = _text_copier(kind)
    cdef Py_ssize_t rows = numbers.shape[0], n_columns = len(sends), i
    cdef Buffer room = filled_buffer(n_columns * sizeof(_Column), 0)
    cdef _Column* columns = <_Column*>room.data
    cdef list read = []
    cdef _Outcome outcome
    _check_numbers(index, numbers, n_columns)
    for i in range(n_columns):
        read.append(_open_column(&columns[i], rows, _binary_copier(sends[i])))
    with nogil:
        # Texts are checked by column; if one is not valid, all are read again and checked by cell.
        outcome = _read_columns(index, numbers, columns, n_columns, _copy_bytes if text == _copy_text else text)
        if text == _copy_text and outcome == _READ and not _are_texts(columns, n_columns, rows):
            outcome = _read_columns(index, numbers, columns, n_columns, text)
    if outcome == _CHANGES:
        raise ValueError(_CHANGED)
    if outcome == _LACKS_MEMORY:
        raise MemoryError
    if outcome == _TOO_LARGE:
        raise OverflowError("a column of these messages has more than 2 GB: give fewer")
    return [(valid, columns[i].nulls, *others) for i, (valid, *others) in enumerate(read)]


cdef tuple _open_column(_Column* column, Py_ssize_t rows, _Copier binary):
    """Return the buffers of a column, which own its memory: bitmap, offsets, values and unread rows."""
    cdef Buffer valid = new_buffer((rows + 7) // 8)
    cdef Buffer offsets = new_buffer(4 * rows + 4)
    cdef Buffer values = new_buffer(16 * min(rows, 1 << 26))  # at most 1 GB, so that growth refuses more than 2
    cdef Buffer left = new_buffer(0)
    valid.size, offsets.size = (rows + 7) // 8, 4 * rows + 4
    column[0] = _Column(<void*>values, <void*>left, valid.data, <int32_t*>offsets.data, NULL, 0, 0, 0, binary)
    return valid, offsets, values, left


cdef _Outcome _read_columns(
    Index index, const int64_t[::1] numbers, _Column* columns, Py_ssize_t n_columns, _Copier text
) noexcept nogil:
    cdef Py_ssize_t rows = numbers.shape[0], row, i, size, written
    cdef const uint32_t* places = <const uint32_t*>index.cell_places.data
    cdef const uint8_t* data = index.data
    cdef const uint8_t* end = index.end
    cdef const uint8_t* at
    cdef uint8_t kind
    cdef bint is_null
    cdef _Column* column
    cdef _Copier copier
    for i in range(n_columns):
        columns[i].to, columns[i].room = (<Buffer>columns[i].values).data, (<Buffer>columns[i].values).room
        columns[i].used = columns[i].nulls = columns[i].offsets[0] = (<Buffer>columns[i].left).size = 0
        memset(columns[i].bits, 255, (rows + 7) // 8)
    for row in range(rows):
        for i in range(n_columns):
            column = &columns[i]
            written = -1
            if numbers[row] >= 0:
                at = data + places[numbers[row] + i]
                kind = at[0]
                is_null = kind == CELL_NULL
                copier = column.binary if kind == CELL_BINARY else text
                if kind == CELL_UNCHANGED:
                    copier = NULL
                if (
                    copier == _copy_bytes
                    and column.room - column.used > _AT_ONCE
                    and end - at >= CELL_HEAD + _AT_ONCE
                ):
                    # The same for NULL, whose next bytes are copied in vain: no branch, which would be random.
                    size = 0 if is_null else <Py_ssize_t>get_unsigned(at + 1, CELL_LENGTH)
                    if size <= _AT_ONCE:
                        memcpy(column.to + column.used, at + CELL_HEAD, _AT_ONCE)
                        column.used += size
                        column.offsets[row + 1] = <int32_t>column.used
                        column.nulls += is_null
                        column.bits[row >> 3] &= ~(is_null << (row & 7))
                        continue
                if not is_null and copier != NULL:
                    size = _size_of_cell(at, end)
                    if size < 0:
                        return _CHANGES
                    if column.room - column.used < size + _WIDEST:
                        if column.used + size + _WIDEST > 0x7FFFFFFF:  # so `room` is at most 2 GB
                            return _TOO_LARGE
                        (<Buffer>column.values).size = column.used
                        if not reserve(<Buffer>column.values, size + _WIDEST):
                            return _LACKS_MEMORY
                        column.to, column.room = (<Buffer>column.values).data, (<Buffer>column.values).room
                    written = copier(at + CELL_HEAD, size, column.to + column.used)
                if written < 0 and not is_null and not _note(<Buffer>column.left, row):
                    return _LACKS_MEMORY
            if written < 0:
                column.nulls += 1
                column.bits[row >> 3] &= ~(1 << (row & 7))
            else:
                column.used += written
            column.offsets[row + 1] = <int32_t>column.used
    for i in range(n_columns):
        (<Buffer>columns[i].values).size = columns[i].used
    return _READ


cdef bint _are_texts(const _Column* columns, Py_ssize_t n_columns, Py_ssize_t rows) noexcept nogil:
    """Return whether each value is valid text: the concatenation is, and no value begins within a character."""
    cdef const uint8_t* values
    cdef Py_ssize_t i, row, used
    for i in range(n_columns):
        values, used = columns[i].to, columns[i].used
        if _is_plain(values, used):
            continue
        if not is_utf8(values, used) or memchr(values, 0, used) != NULL:
            return False
        for row in range(rows):
            if columns[i].offsets[row] < used and values[columns[i].offsets[row]] & 0xC0 == 0x80:
                return False
    return True


cdef bint _is_plain(const uint8_t* at, Py_ssize_t size) noexcept nogil:
    """Return whether all bytes are ASCII characters, and none is zero."""
    cdef uint8_t high = 0
    cdef Py_ssize_t i
    for i in range(size):
        high |= at[i] | (at[i] - 1)  # of a zero, the difference is 0xff
    return high < 0x80


def read_slices(Index index not None, str name, bint is_text):
    """Return a field of all messages that is a string or bytes, as `read_any` returns a column.

    Raises:
        OverflowError: The column has more than 2 GB.
    """
    cdef int slot = SLOT_NUMBERS[name]
    cdef Buffer valid = filled_buffer((index.rows + 7) // 8, 0)
    cdef Buffer offsets = filled_buffer(4 * index.rows + 4, 0)
    cdef Buffer values = new_buffer(0)
    cdef Buffer left = new_buffer(0)
    cdef int32_t* offset = <int32_t*>offsets.data
    cdef const uint8_t* at
    cdef Py_ssize_t row, size, nulls = index.rows
    cdef bint enough = True
    if index.values[slot] != NULL:
        with nogil:
            for row in range(index.rows):
                if index.there[slot][row]:
                    at = index.data + index.values[slot][row]
                    size = index.values[slot + 1][row]
                    if is_text and not is_utf8(at, size):
                        enough = _note(left, row)
                    else:
                        enough = reserve(values, size)
                        if enough:
                            memcpy(values.data + values.size, at, size)
                            values.size += size
                            valid.data[row >> 3] |= 1 << (row & 7)
                            nulls -= 1
                    if not enough or values.size > 0x7FFFFFFF:
                        break
                offset[row + 1] = <int32_t>values.size
    if not enough:
        raise MemoryError
    if values.size > 0x7FFFFFFF:
        raise OverflowError("a column of these messages has more than 2 GB: give fewer")
    return valid, nulls, offsets, values, left


cdef bint _note(Buffer left, int64_t row) noexcept nogil:
    """Add a row to the unread rows; return False if there is no memory."""
    if not reserve(left, 8):
        return False
    memcpy(left.data + left.size, &row, 8)
    left.size += 8
    return True


cdef int _check_numbers(Index index, const int64_t[::1] numbers, Py_ssize_t n_columns) except -1:
    cdef Py_ssize_t row
    for row in range(numbers.shape[0]):
        if numbers[row] > index.n_cells - n_columns and numbers[row] >= 0:
            raise IndexError(f"there is no cell {numbers[row] + n_columns - 1}: there are {index.n_cells}")
    return 0
