# The server's text of timestamps and of rows, and its hash of texts


def hash_texts(const uint8_t[::1] data, const int32_t[::1] offsets, uint64_t[::1] hashes):
    """Write the hash of each text to `hashes` (hash_bytes_extended in src/common/hashfn.c, without seed).

    Args:
        data: The bytes of the texts.
        offsets: Start of each text in `data`, then the end of the last text.
        hashes: An array with room for one hash per text.
    """
    cdef Py_ssize_t row
    with nogil:
        for row in range(hashes.shape[0]):
            hashes[row] = _hash_bytes(&data[0] + offsets[row], offsets[row + 1] - offsets[row])


cdef uint64_t _hash_bytes(const uint8_t* at, int32_t size) noexcept nogil:
    cdef uint32_t[3] words
    cdef uint32_t a = <uint32_t>0x9e3779b9 + <uint32_t>size + <uint32_t>3923095
    cdef uint32_t b = a, c = a
    while size >= 12:
        memcpy(words, at, 12)
        a += words[0]
        b += words[1]
        c += words[2]
        # mix
        a = (a - c) ^ _rotated(c, 4)
        c += b
        b = (b - a) ^ _rotated(a, 6)
        a += c
        c = (c - b) ^ _rotated(b, 8)
        b += a
        a = (a - c) ^ _rotated(c, 16)
        c += b
        b = (b - a) ^ _rotated(a, 19)
        a += c
        c = (c - b) ^ _rotated(b, 4)
        b += a
        at += 12
        size -= 12
    words[0] = words[1] = words[2] = 0
    memcpy(words, at, size)
    a += words[0]
    b += words[1]
    c += words[2] << 8  # the lowest byte holds the size
    # final
    c = (c ^ b) - _rotated(b, 14)
    a = (a ^ c) - _rotated(c, 11)
    b = (b ^ a) - _rotated(a, 25)
    c = (c ^ b) - _rotated(b, 16)
    a = (a ^ c) - _rotated(c, 4)
    b = (b ^ a) - _rotated(a, 14)
    c = (c ^ b) - _rotated(b, 24)
    return (<uint64_t>b << 32) | c


cdef inline uint32_t _rotated(uint32_t word, int bits) noexcept nogil:
    return (word << bits) | (word >> (32 - bits))


cdef struct _Texts:
    const uint8_t* data
    const int32_t* offsets
    _Bits valid
    bint is_plain


def record_texts(list columns, Py_ssize_t rows):
    """Return the text of each row (record_out in src/backend/utils/adt/rowtypes.c).

    Args:
        columns: A tuple for each column: the offset and the buffers of its Arrow array of strings, and whether
            its values certainly need no quotation marks.
        rows: Number of rows.

    Returns:
        The offsets (int32) and the bytes of an Arrow array of strings.

    Raises:
        ValueError: A buffer ends before its array does, or the texts have more than 2 GiB.
    """
    cdef list views = []
    cdef Buffer places = new_buffer(len(columns) * sizeof(_Column))
    cdef _Texts* column = <_Texts*>places.data
    cdef Py_ssize_t n = len(columns)
    cdef Py_ssize_t size, end, i, row
    # Each value may have twice its bytes, quotation marks, and a comma or parenthesis.
    cdef Py_ssize_t most = (3 * n + 2) * rows
    for i in range(n):
        at, buffers, column[i].is_plain = columns[i]
        column[i].offsets = <const int32_t*>_view(buffers[1], (at + rows + 1) * 4, NULL, views) + <Py_ssize_t>at
        end = column[i].offsets[rows]
        column[i].data = _view(b"" if buffers[2] is None else buffers[2], end, &size, views)
        column[i].valid.data = NULL
        if buffers[0] is not None:
            column[i].valid = _bits(buffers[0], at, rows, views)
        most += (1 if column[i].is_plain else 2) * (end - column[i].offsets[0])
    cdef Buffer offsets = new_buffer((rows + 1) * 4)
    cdef Buffer texts = new_buffer(most)
    cdef int32_t* ends = <int32_t*>offsets.data
    cdef uint8_t* out = texts.data
    with nogil:
        ends[0] = 0
        for row in range(rows):
            out[0] = c"("
            out += 1
            for i in range(n):
                if i:
                    out[0] = c","
                    out += 1
                if _bit(column[i].valid, row, 1):
                    out = _put_value(&column[i], row, out)
            out[0] = c")"
            out += 1
            if out - texts.data > 0x7fffffff:
                break
            ends[row + 1] = <int32_t>(out - texts.data)
    if out - texts.data > 0x7fffffff:
        raise ValueError("the texts of the rows have more than 2 GiB")
    offsets.size = (rows + 1) * 4
    texts.size = out - texts.data
    return offsets, texts


cdef inline uint8_t* _put_value(const _Texts* column, Py_ssize_t row, uint8_t* out) noexcept nogil:
    """Write a value, in quotation marks if it is empty or has special characters; return the end."""
    cdef const uint8_t* at = column.data + column.offsets[row]
    cdef const uint8_t* end = column.data + column.offsets[row + 1]
    cdef Py_ssize_t size = end - at
    cdef uint8_t found = 0
    if not column.is_plain:
        found = _special(at, end)
    if not found:
        memcpy(out, at, size)
        return out + size
    out[0] = c'"'
    out += 1
    if found & _DOUBLED:
        while at < end:
            if _SPECIAL[at[0]] & _DOUBLED:
                out[0] = at[0]
                out += 1
            out[0] = at[0]
            out += 1
            at += 1
    else:
        memcpy(out, at, size)
        out += size
    out[0] = c'"'
    return out + 1


cdef enum:
    _IN_QUOTES = 1
    _DOUBLED = 2

cdef inline uint8_t _special(const uint8_t* at, const uint8_t* end) noexcept nogil:
    """Return which of _IN_QUOTES and _DOUBLED is true of the bytes of a value; an empty value is in quotes."""
    cdef uint8_t found = _IN_QUOTES if at == end else 0
    while at < end:
        found |= _SPECIAL[at[0]]
        at += 1
    return found


# Whether record_out quotes a value that has this byte, and doubles the byte.
cdef uint8_t[256] _SPECIAL
for _byte in range(256):
    _SPECIAL[_byte] = _IN_QUOTES * (_byte in b' \t\n\x0b\f\r"\\(),') + _DOUBLED * (_byte in b'"\\')


def timestamp_texts(const int64_t[::1] values, bytes zone):
    """Return timestamps as text (EncodeDateTime in src/backend/utils/adt/datetime.c, style ISO).

    Args:
        values: Microseconds since 1970. The text of a value before year 1 or after 9999 is not meaningful.
        zone: The time zone, at most 6 bytes.

    Returns:
        The offsets (int32) and the bytes of an Arrow array of strings.

    Raises:
        ValueError: The texts have more than 2 GiB.
    """
    cdef Py_ssize_t rows = values.shape[0]
    cdef Py_ssize_t row
    cdef const char* zone_bytes = zone
    cdef Py_ssize_t zone_size = len(zone)
    if rows * 32 > 0x7fffffff or zone_size > 6:
        raise ValueError("the texts of the timestamps have more than 2 GiB")
    cdef Buffer offsets = new_buffer((rows + 1) * 4)
    cdef Buffer texts = new_buffer(rows * 32)
    cdef int32_t* ends = <int32_t*>offsets.data
    cdef uint8_t* out = texts.data
    with nogil:
        ends[0] = 0
        for row in range(rows):
            out = _put_timestamp(values[row], out)
            memcpy(out, zone_bytes, zone_size)
            out += zone_size
            ends[row + 1] = <int32_t>(out - texts.data)
    offsets.size = (rows + 1) * 4
    texts.size = out - texts.data
    return offsets, texts


cdef inline uint8_t* _put_timestamp(int64_t value, uint8_t* out) noexcept nogil:
    """Write a timestamp of at most 26 bytes; return the end."""
    cdef int64_t microseconds = value % _DAY
    cdef int64_t days = value // _DAY
    if microseconds < 0:
        microseconds += _DAY
        days -= 1
    # Days since 0000-03-01, in a calendar whose years begin in March: February has the leap day at the end.
    days += 719_468
    cdef int64_t cycle = days // 146_097
    cdef int64_t day = days - cycle * 146_097
    cdef int64_t year = (day - day // 1_460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year + year // 4 - year // 100
    cdef int64_t month = (5 * day + 2) // 153
    day -= (153 * month + 2) // 5
    year += 400 * cycle + (month >= 10)
    month += 3 if month < 10 else -9
    cdef int64_t seconds = microseconds // 1_000_000
    microseconds -= seconds * 1_000_000
    out = _put_digits(year, 4, c"-", out)
    out = _put_digits(month, 2, c"-", out)
    out = _put_digits(day + 1, 2, c" ", out)
    out = _put_digits(seconds // 3600, 2, c":", out)
    out = _put_digits(seconds // 60 % 60, 2, c":", out)
    out = _put_digits(seconds % 60, 2, c".", out)
    if not microseconds:
        return out - 1
    out = _put_digits(microseconds, 6, 0, out) - 1
    while (out - 1)[0] == c"0":
        out -= 1
    return out


cdef inline uint8_t* _put_digits(int64_t number, int count, uint8_t behind, uint8_t* out) noexcept nogil:
    """Write the last digits of a number, and a byte behind them; return the end."""
    cdef int digit
    for digit in range(count - 1, -1, -1):
        out[digit] = <uint8_t>(c"0" + number % 10)
        number //= 10
    out[count] = behind
    return out + count + 1
