# Bytes to Python objects

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM
from cpython.unicode cimport PyUnicode_DecodeUTF8

cdef extern from "Python.h":
    str PyUnicode_New(Py_ssize_t size, Py_UCS4 most)
    char* PyUnicode_1BYTE_DATA(object text)


from logicalrep import wire

cdef object UNCHANGED = wire.UNCHANGED
cdef dict BOOL = {0: False, 1: True}


cdef struct Input:
    # The bytes of a message that are not read yet
    const uint8_t* at
    const uint8_t* end


cdef inline int need(Input* data, size_t size) except -1:
    """Raise ValueError if less than `size` bytes are left; the functions below do not check it again."""
    if <size_t>(data.end - data.at) < size:
        raise ValueError
    return 0


cdef inline uint8_t read_uint8(Input* data) noexcept:
    data.at += 1
    return (data.at - 1)[0]


cdef inline uint16_t read_uint16(Input* data) noexcept:
    data.at += 2
    return get_u16(data.at - 2)


cdef inline uint32_t read_uint32(Input* data) noexcept:
    data.at += 4
    return get_u32(data.at - 4)


cdef inline uint64_t read_uint64(Input* data) noexcept:
    data.at += 8
    return get_u64(data.at - 8)


cdef inline uint64_t read_unsigned(Input* data, int width) noexcept:
    data.at += width
    return get_unsigned(data.at - width, width)


cdef inline int32_t read_int32(Input* data) noexcept:
    return <int32_t>read_uint32(data)


cdef inline int64_t read_int64(Input* data) noexcept:
    return <int64_t>read_uint64(data)


cdef inline object read_bool(Input* data):
    return BOOL[read_uint8(data)]


cdef inline object flags_of(list table, uint8_t bits):
    """Return the flags with these bits; `table` has None for unknown bits."""
    member = table[bits]
    if member is None:
        raise ValueError
    return member


cdef inline bytes read_bytes(Input* data, size_t size):
    need(data, size)
    data.at += size
    return PyBytes_FromStringAndSize(<const char*>data.at - size, size)


cdef inline bint is_ascii(const uint8_t* at, size_t size) noexcept:
    cdef uint64_t word, bits = 0
    while size >= 8:
        memcpy(&word, at, 8)
        bits |= word
        at += 8
        size -= 8
    while size:
        bits |= at[0]
        at += 1
        size -= 1
    return not bits & 0x8080808080808080ULL


cdef inline str read_text(Input* data, size_t size):
    """Return text of `size` bytes; bytes that are not UTF-8 become lone surrogates (PEP 383)."""
    need(data, size)
    data.at += size
    if size > 1 and is_ascii(data.at - size, size):  # Python has one object for each character
        text = PyUnicode_New(size, 127)
        memcpy(PyUnicode_1BYTE_DATA(text), data.at - size, size)
        return text
    return PyUnicode_DecodeUTF8(<const char*>data.at - size, size, "surrogateescape")


cdef inline str read_string(Input* data):
    """Return text that ends with a zero byte (pq_getmsgstring)."""
    cdef const void* zero = memchr(data.at, 0, data.end - data.at)
    if zero is NULL:
        raise ValueError
    text = read_text(data, <const uint8_t*>zero - data.at)
    data.at += 1
    return text


cdef inline tuple new_tuple(Input* data, size_t count, size_t size):
    """Return a tuple for `count` items of at least `size` bytes; raise ValueError if less bytes are left."""
    if <size_t>(data.end - data.at) // size < count:
        raise ValueError
    return PyTuple_New(count)


cdef inline void put(tuple items, Py_ssize_t i, object item) noexcept:
    Py_INCREF(item)  # the tuple takes it over
    PyTuple_SET_ITEM(items, i, item)


cdef tuple decode_cells(Input* data, int count_size, int text, int binary):
    """Return the cells of a tuple.

    Args:
        data: The bytes of the message.
        count_size: Bytes of the number of cells.
        text: Bytes of the length of a cell in text format.
        binary: Bytes of the length of a cell in binary format.
    """
    need(data, count_size)
    cdef Py_ssize_t i, count = read_unsigned(data, count_size)
    cdef tuple cells = new_tuple(data, count, 1)
    cdef uint8_t tag
    for i in range(count):
        need(data, 1)
        tag = read_uint8(data)
        if tag == CELL_TEXT:
            need(data, text)
            put(cells, i, read_text(data, read_unsigned(data, text)))
        elif tag == CELL_NULL:
            put(cells, i, None)
        elif tag == CELL_UNCHANGED:
            put(cells, i, UNCHANGED)
        elif tag == CELL_BINARY:
            need(data, binary)
            put(cells, i, read_bytes(data, read_unsigned(data, binary)))
        else:
            raise ValueError
    return cells
