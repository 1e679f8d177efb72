# Python objects to bytes

from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.number cimport PyNumber_Index
from cpython.unicode cimport PyUnicode_AsUTF8String

cdef extern from "Python.h":
    bint PyUnicode_IS_ASCII(object text)
    Py_ssize_t PyUnicode_GET_LENGTH(object text)
    void* PyUnicode_DATA(object text)


cdef object escaped_bytes = wire.escaped_bytes
cdef object write_string = wire.write_string


cdef struct Output:
    # The bytes of a message so far; `data` is `small`, or its own memory if they are more
    uint8_t* data
    size_t size
    size_t room
    uint8_t small[512]


cdef inline void start(Output* out) noexcept:
    out.data, out.size, out.room = out.small, 0, sizeof(out.small)


cdef inline bytes finish(Output* out):
    return PyBytes_FromStringAndSize(<const char*>out.data, out.size)


cdef inline void clear(Output* out) noexcept:
    if out.data != out.small:
        PyMem_Free(out.data)


cdef inline int want(Output* out, size_t size) except -1:
    """Make room for `size` more bytes; the functions below do not check it again."""
    if out.room - out.size < size:
        grow(out, size)
    return 0


cdef int grow(Output* out, size_t size) except -1:
    cdef size_t room = 2 * (out.size + size)
    cdef uint8_t* data
    if out.data == out.small:
        data = <uint8_t*>PyMem_Malloc(room)
        if data is not NULL:
            memcpy(data, out.small, out.size)
    else:
        data = <uint8_t*>PyMem_Realloc(out.data, room)
    if data is NULL:
        raise MemoryError
    out.data, out.room = data, room
    return 0


cdef inline void write_uint8(Output* out, uint8_t value) noexcept:
    out.data[out.size] = value
    out.size += 1


cdef inline void write_uint16(Output* out, uint16_t value) noexcept:
    put_u16(out.data + out.size, value)
    out.size += 2


cdef inline void write_uint32(Output* out, uint32_t value) noexcept:
    put_u32(out.data + out.size, value)
    out.size += 4


cdef inline void write_uint64(Output* out, uint64_t value) noexcept:
    put_u64(out.data + out.size, value)
    out.size += 8


cdef inline void write_unsigned(Output* out, size_t value, int width) noexcept:
    """Append an unsigned integer of 1, 2 or 4 bytes."""
    if width == 4:
        write_uint32(out, value)
    elif width == 2:
        write_uint16(out, value)
    else:
        write_uint8(out, value)


cdef inline void write_int32(Output* out, int32_t value) noexcept:
    write_uint32(out, <uint32_t>value)


cdef inline void write_int64(Output* out, int64_t value) noexcept:
    write_uint64(out, <uint64_t>value)


cdef inline void write(Output* out, const void* data, size_t size) noexcept:
    memcpy(out.data + out.size, data, size)
    out.size += size


cdef inline size_t fitting(size_t size, int width) except? 0:
    """Return `size`; raise ValueError if a count or length of `width` bytes cannot hold it."""
    if size >> (8 * width):
        raise ValueError
    return size


cdef object known(object value, uint64_t mask):
    """Return `value`; raise ValueError if it has bits outside `mask` (known_bits in logicalrep.wire)."""
    cdef uint64_t bits = PyNumber_Index(value)
    if bits & ~mask:
        raise ValueError
    return value


cdef inline int append_bytes(Output* out, object data) except -1:
    if not isinstance(data, bytes):
        raise ValueError
    want(out, PyBytes_GET_SIZE(data))
    write(out, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
    return 0


cdef inline int append_tag(Output* out, uint8_t tag) except -1:
    want(out, 1)
    write_uint8(out, tag)
    return 0


cdef object utf8(object text):
    """Return the bytes that a decoder returns as `text`."""
    try:
        return PyUnicode_AsUTF8String(text)
    except UnicodeEncodeError:
        raw = escaped_bytes(text)
    if type(raw) is not bytes:  # the text is of a class with an `encode` of its own
        raise ValueError
    return raw


cdef inline int append_value(Output* out, uint8_t tag, int width, const void* data, size_t size) except -1:
    """Append a tag, the size as an integer of `width` bytes, and the bytes."""
    fitting(size, width)
    want(out, 1 + width + size)
    write_uint8(out, tag)
    write_unsigned(out, size, width)
    write(out, data, size)
    return 0


cdef int encode_cells(Output* out, object cells, int count_size, int text, int binary) except -1:
    """Append the cells of a tuple; the integers are those of `decode_cells`."""
    if not isinstance(cells, (tuple, list)):
        raise ValueError
    want(out, count_size)
    write_unsigned(out, fitting(len(cells), count_size), count_size)
    for cell in cells:
        _encode_cell(out, cell, text, binary)
    return 0


cdef inline int _encode_cell(Output* out, object cell, int text, int binary) except -1:
    if isinstance(cell, str):
        if PyUnicode_IS_ASCII(cell):
            append_value(out, CELL_TEXT, text, PyUnicode_DATA(cell), PyUnicode_GET_LENGTH(cell))
        else:
            raw = utf8(cell)
            append_value(out, CELL_TEXT, text, PyBytes_AS_STRING(raw), PyBytes_GET_SIZE(raw))
    elif cell is None:
        append_tag(out, CELL_NULL)
    elif cell is UNCHANGED:
        append_tag(out, CELL_UNCHANGED)
    elif isinstance(cell, bytes):
        append_value(out, CELL_BINARY, binary, PyBytes_AS_STRING(cell), PyBytes_GET_SIZE(cell))
    else:
        raise ValueError
    return 0
