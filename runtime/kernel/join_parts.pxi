# Messages, joined from parts: `logicalrep.columns.assembly` says which parts

from cpython.buffer cimport PyBuffer_IsContiguous
from cpython.memoryview cimport PyMemoryView_FromObject, PyMemoryView_GET_BUFFER


cdef enum:
    _MARGIN = 16  # unused bytes after the messages, so that short parts are copied as 16 bytes

cdef enum _Kind:
    _SAME
    _NUMBERS
    _VALUES
    _CELLS
    _CELLS_OR_NOT

cdef struct _Bits:
    const uint8_t* data  # NULL if there is no bitmap
    Py_ssize_t start

cdef struct _Part:
    _Kind kind
    Py_ssize_t width  # bytes of a constant part, or of a number
    uint64_t tags[3]  # of NULL, UNCHANGED and a value, as the highest byte: the first of a cell's eight bytes
    const int64_t* numbers
    const int32_t* offsets
    const uint8_t* data
    Py_ssize_t data_size
    _Bits valid
    _Bits unchanged


def join_parts(list parts, Py_ssize_t rows, Py_ssize_t most):
    """Return the concatenated parts of each message.

    Args:
        parts: Bytes are the same in all messages. Other parts are tuples. Integers: a buffer (int64), and
            the bytes of each integer in a message. Values: offset and buffers of an Arrow array. Cells: the same,
            then the tag of a value, whether some are NULL, and a bitmap of unchanged cells with its offset, or
            None.
        rows: Number of messages.
        most: Maximum size of all messages, in bytes.

    Returns:
        The size of the messages in bytes, their offsets (int32), and their bytes. The last two are None if the
        size is more than `most`.

    Raises:
        ValueError: A buffer ends before its array does, or offsets are not ascending.
    """
    cdef list views = []
    cdef Buffer places = new_buffer((len(parts) + 1) * sizeof(_Part))
    cdef _Part* made = <_Part*>places.data
    cdef Py_ssize_t n = len(parts)
    cdef Py_ssize_t i
    cdef int64_t size
    cdef Buffer offsets, data
    if rows < 0:
        raise ValueError("there are fewer rows than none")
    for i in range(n):
        made[i] = _part(parts[i], rows, views)
    with nogil:
        size = _measure(made, n, rows)
    if size < 0:
        raise ValueError("the offsets of an array are not in their order, or not inside its data")
    if size > most:
        return size, None, None
    offsets = new_buffer((rows + 1) * 4)
    data = new_buffer(size + _MARGIN)
    with nogil:
        _write(made, n, rows, <int32_t*>offsets.data, data.data)
    offsets.size = (rows + 1) * 4
    data.size = size
    return size, offsets, data


cdef _Part _part(object given, Py_ssize_t rows, list views) except *:
    cdef _Part part
    memset(&part, 0, sizeof(part))
    if isinstance(given, bytes):
        part.kind = _SAME
        part.data = _view(given, 0, &part.data_size, views)
        part.width = part.data_size
        return part
    if len(given) == 2 and isinstance(given[1], int):
        numbers, part.width = given
        if not 1 <= part.width <= 8:
            raise ValueError("an integer has 1 to 8 bytes")
        part.kind = _NUMBERS
        part.numbers = <const int64_t*>_view(numbers, rows * 8, NULL, views)
        return part
    cdef Py_ssize_t at = given[0]
    cdef list buffers = given[1]
    if at < 0:
        raise ValueError("an array begins before its buffers")
    if rows:
        part.offsets = <const int32_t*>_view(buffers[1], (at + rows + 1) * 4, NULL, views) + at
    if buffers[2] is not None:
        part.data = _view(buffers[2], 0, &part.data_size, views)
    part.kind = _VALUES
    if len(given) > 2:
        _, _, tag, has_null, unchanged = given
        part.kind = _CELLS
        part.tags[0] = <uint64_t>CELL_NULL << 56
        part.tags[1] = <uint64_t>CELL_UNCHANGED << 56
        part.tags[2] = <uint64_t>(<uint8_t>tag) << 56
        if has_null:
            part.kind = _CELLS_OR_NOT
            part.valid = _bits(buffers[0], at, rows, views)
        if unchanged is not None:
            part.kind = _CELLS_OR_NOT
            part.unchanged = _bits(unchanged[0], unchanged[1], rows, views)
    return part


cdef _Bits _bits(object bitmap, Py_ssize_t start, Py_ssize_t rows, list views) except *:
    cdef _Bits bits
    if start < 0:
        raise ValueError("an array begins before its buffers")
    bits.data, bits.start = _view(bitmap, (start + rows + 7) >> 3, NULL, views), start
    return bits


cdef const uint8_t* _view(object given, Py_ssize_t least, Py_ssize_t* size, list views) except? NULL:
    """Return the address of a buffer's bytes, which is valid while `views` holds the buffer's view."""
    cdef object view = PyMemoryView_FromObject(given)
    cdef Py_buffer* buffer = PyMemoryView_GET_BUFFER(view)
    if not PyBuffer_IsContiguous(buffer, b"C"):
        raise ValueError("a buffer is not contiguous")
    if buffer.len < least:
        raise ValueError(f"a buffer has {buffer.len} bytes, less than the {least} that its array needs")
    views.append(view)
    if size != NULL:
        size[0] = buffer.len
    return <const uint8_t*>buffer.buf


cdef inline int64_t _bit(_Bits bits, Py_ssize_t row, int64_t otherwise) noexcept nogil:
    if bits.data == NULL:
        return otherwise
    return bits.data[(bits.start + row) >> 3] >> ((bits.start + row) & 7) & 1


cdef inline int64_t _is_sent(const _Part* part, Py_ssize_t row) noexcept nogil:
    """Return 1 if a cell has a value, else 0. Callers calculate with it: a branch would be unpredictable."""
    return _bit(part.valid, row, 1) & ~_bit(part.unchanged, row, 0)


cdef int64_t _measure(const _Part* parts, Py_ssize_t n, Py_ssize_t rows) noexcept nogil:
    """Return the size of all messages, or -1 if offsets are wrong; `_write` does not check them again."""
    cdef const _Part* part
    cdef const int32_t* offsets
    cdef Py_ssize_t i, row
    cdef int64_t size = 0
    cdef int wrong = 0
    if not rows:
        return 0
    for i in range(n):
        part = &parts[i]
        if part.kind == _SAME or part.kind == _NUMBERS:
            size += rows * part.width
            continue
        offsets = part.offsets
        for row in range(rows):
            wrong |= offsets[row + 1] < offsets[row]
        if wrong or offsets[0] < 0 or offsets[rows] > part.data_size:
            return -1
        if part.kind == _CELLS_OR_NOT:
            size += rows
            for row in range(rows):
                size += _is_sent(part, row) * (CELL_LENGTH + offsets[row + 1] - offsets[row])
        else:
            size += offsets[rows] - offsets[0]
            if part.kind == _CELLS:
                size += rows * CELL_HEAD
    return size


cdef void _write(
    const _Part* parts, Py_ssize_t n, Py_ssize_t rows, int32_t* offsets, uint8_t* begin
) noexcept nogil:
    """Write the messages. _MARGIN bytes follow them, so that numbers and heads are written as eight bytes."""
    cdef uint8_t* at = begin
    cdef const _Part* part
    cdef const _Part* end = parts + n
    cdef Py_ssize_t row, size
    cdef int64_t sent
    offsets[0] = 0
    for row in range(rows):
        part = parts
        while part < end:
            if part.kind == _NUMBERS:
                put_u64(at, <uint64_t>part.numbers[row] << (64 - 8 * part.width))
                at += part.width
            elif part.kind == _SAME:
                at = _copy(at, part, 0, part.width)
            elif part.kind == _CELLS_OR_NOT:
                sent = _is_sent(part, row)
                size = sent * (part.offsets[row + 1] - part.offsets[row])
                put_u64(at, part.tags[2 * sent + _bit(part.unchanged, row, 0)] | <uint64_t>size << (56 - 8 * CELL_LENGTH))
                at = _copy(at + 1 + CELL_LENGTH * sent, part, part.offsets[row], size)
            else:
                size = part.offsets[row + 1] - part.offsets[row]
                if part.kind != _VALUES:
                    put_u64(at, part.tags[2] | <uint64_t>size << (56 - 8 * CELL_LENGTH))
                    at += CELL_HEAD
                at = _copy(at, part, part.offsets[row], size)
            part += 1
        offsets[row + 1] = <int32_t>(at - begin)


cdef inline uint8_t* _copy(uint8_t* at, const _Part* part, Py_ssize_t place, Py_ssize_t size) noexcept nogil:
    """Copy bytes of a part; return where they end."""
    if size <= _MARGIN and place + _MARGIN <= part.data_size:
        memcpy(at, part.data + place, _MARGIN)
    elif size:
        memcpy(at, part.data + place, size)
    return at + size
