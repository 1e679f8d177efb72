# Rows of COPY as the cells of tuples


cdef enum:
    _COPIED = 8  # bytes that are copied at once
    _TRAILER = 0xFFFF  # of COPY's binary format, instead of a number of columns


def copy_data_end(const uint8_t[::1] data, Py_ssize_t start):
    """Return how far a connection's bytes consist of whole CopyData messages.

    Args:
        data: Bytes that were received.
        start: Offset of a message.

    Returns:
        The offset of the first message that is not a whole CopyData message, and the number of messages before it.
    """
    cdef Py_ssize_t at = start
    cdef Py_ssize_t count = 0
    cdef Py_ssize_t size
    if start < 0:
        raise ValueError(f"start is negative: {start}")
    with nogil:
        while (size := _contents_size(data, at)) >= 0:
            at += _COPY_HEAD + size
            count += 1
    return at, count


def copy_data_contents(const uint8_t[::1] data):
    """Return the contents of whole CopyData messages, joined.

    Args:
        data: The messages, up to the end that `copy_data_end` has found.

    Raises:
        ValueError: The data are not whole CopyData messages.
    """
    cdef Buffer contents = new_buffer(len(data))
    cdef Py_ssize_t at = 0
    cdef Py_ssize_t size
    with nogil:
        while (size := _contents_size(data, at)) >= 0:
            memcpy(contents.data + contents.size, &data[at] + _COPY_HEAD, size)
            contents.size += size
            at += _COPY_HEAD + size
    if at != len(data):
        raise ValueError(f"byte {at} is not the start of a whole CopyData message")
    return contents


def encode_text_rows(const uint8_t[::1] data, Py_ssize_t rows, Py_ssize_t width):
    """Return rows of COPY's text format as cells (CopyAttributeOutText in src/backend/commands/copyto.c).

    Args:
        data: The rows.
        rows: Number of rows.
        width: Number of columns, at least 1.

    Returns:
        The offsets of the rows (int32), and the bytes of the cells.

    Raises:
        ValueError: The data are not this many rows of this many columns.
    """
    cdef Py_ssize_t row, column
    cdef bint is_right = True
    # A cell has at least one byte: its separator.
    if rows < 0 or width < 1 or rows > len(data) // width:
        raise ValueError(f"{len(data)} bytes are not {rows} rows of {width} columns")
    cdef Buffer offsets = new_buffer((rows + 1) * 4)
    cdef Buffer cells = new_buffer(len(data) + CELL_HEAD * rows * width + _COPIED)
    cdef const uint8_t* at = &data[0] if rows else NULL
    cdef const uint8_t* end = at + len(data)
    cdef int32_t* ends = <int32_t*>offsets.data
    cdef uint8_t* to = cells.data
    with nogil:
        ends[0] = 0
        for row in range(rows):
            for column in range(width):
                is_right = _text_cell(&at, end, &to, c'\n' if column == width - 1 else c'\t')
                if not is_right:
                    break
            if not is_right:
                break
            ends[row + 1] = <int32_t>(to - cells.data)
    if not is_right or at != end:
        raise ValueError(f"{len(data)} bytes are not {rows} rows of {width} columns")
    offsets.size = (rows + 1) * 4
    cells.size = to - cells.data
    return offsets, cells


def encode_binary_rows(const uint8_t[::1] data, const uint8_t[::1] tags):
    """Return rows of COPY's binary format as cells (CopyOneRowTo in src/backend/commands/copyto.c).

    Args:
        data: The rows, each with its number of columns. The format's trailer may follow them.
        tags: For each column, the tag of cells with a value; at least one column.

    Returns:
        The offsets of the rows (int32), and the bytes of the cells.

    Raises:
        ValueError: The data are not rows of this many columns.
    """
    cdef Py_ssize_t column
    cdef Py_ssize_t width = len(tags)
    cdef Py_ssize_t rows = 0
    cdef bint is_right = True
    if width < 1:
        raise ValueError("rows have at least one column")
    # A row has at least two bytes, and four for each cell.
    cdef Buffer offsets = new_buffer((len(data) // (2 + 4 * width) + 1) * 4)
    cdef Buffer cells = new_buffer(2 * len(data))
    cdef const uint8_t* at = &data[0] if len(data) else NULL
    cdef const uint8_t* end = at + len(data)
    cdef int32_t* ends = <int32_t*>offsets.data
    cdef uint8_t* to = cells.data
    with nogil:
        ends[0] = 0
        while at != end:
            if end - at == 2 and get_u16(at) == _TRAILER:
                at = end
                break
            is_right = end - at >= 2 and get_u16(at) == width
            if not is_right:
                break
            at += 2
            for column in range(width):
                is_right = _binary_cell(&at, end, &to, tags[column])
                if not is_right:
                    break
            if not is_right:
                break
            rows += 1
            ends[rows] = <int32_t>(to - cells.data)
    if not is_right:
        raise ValueError(f"row {rows} of {len(data)} bytes does not have {width} columns")
    offsets.size = (rows + 1) * 4
    cells.size = to - cells.data
    return offsets, cells


cdef inline bint _text_cell(const uint8_t** place, const uint8_t* end, uint8_t** target, uint8_t separator) noexcept nogil:
    """Write a cell; return False if no separator follows it."""
    cdef const uint8_t* at = place[0]
    cdef uint8_t* to = target[0]
    cdef uint8_t* value = to + CELL_HEAD
    cdef uint64_t word
    if end - at >= 3 and at[0] == c'\\' and at[1] == c'N' and at[2] == separator:
        to[0] = CELL_NULL
        place[0] = at + 3
        target[0] = to + 1
        return True
    to[0] = CELL_TEXT
    to = value
    while True:
        while end - at >= _COPIED:
            memcpy(&word, at, _COPIED)
            if _has_zero(word ^ 0x0909090909090909ULL) | _has_zero(word ^ 0x0A0A0A0A0A0A0A0AULL) | _has_zero(word ^ 0x5C5C5C5C5C5C5C5CULL):
                break
            memcpy(to, &word, _COPIED)
            at += _COPIED
            to += _COPIED
        while at < end and at[0] != c'\t' and at[0] != c'\n' and at[0] != c'\\':
            to[0] = at[0]
            at += 1
            to += 1
        if at == end:
            return False
        if at[0] != c'\\':
            break
        if end - at < 2:
            return False
        to[0] = _unescape(at[1])
        at += 2
        to += 1
    if at[0] != separator:
        return False
    put_u32(value - CELL_LENGTH, <uint32_t>(to - value))
    place[0] = at + 1
    target[0] = to
    return True


cdef inline uint64_t _has_zero(uint64_t word) noexcept nogil:
    """Return a number that is not 0 if one of the bytes is 0."""
    return (word - 0x0101010101010101ULL) & ~word & 0x8080808080808080ULL


cdef inline uint8_t _unescape(uint8_t letter) noexcept nogil:
    if letter == c'b':
        return 8
    if letter == c't':
        return 9
    if letter == c'n':
        return 10
    if letter == c'v':
        return 11
    if letter == c'f':
        return 12
    if letter == c'r':
        return 13
    return letter


cdef inline bint _binary_cell(const uint8_t** place, const uint8_t* end, uint8_t** target, uint8_t tag) noexcept nogil:
    """Write a cell; return False if the data end before the cell does."""
    cdef const uint8_t* at = place[0]
    cdef uint8_t* to = target[0]
    cdef int32_t size
    if end - at < 4:
        return False
    size = <int32_t>get_u32(at)
    at += 4
    if size < 0:
        to[0] = CELL_NULL
        to += 1
    elif end - at < size:
        return False
    else:
        to[0] = tag
        put_u32(to + 1, <uint32_t>size)
        memcpy(to + CELL_HEAD, at, size)
        at += size
        to += CELL_HEAD + size
    place[0] = at
    target[0] = to
    return True
