# Memory, integers and UTF-8

import sys

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from libc.math cimport NAN, isinf
from libc.stdint cimport int16_t, int32_t, int64_t, int8_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc, strtod
from libc.string cimport memchr, memcpy, memset

cdef extern from "<stdlib.h>" nogil:
    float strtof(const char*, char**)

if sys.byteorder != "little":
    raise ImportError("it needs a processor that has the least significant byte first")


cdef enum:
    _LEAST = 16  # 2**16 bytes, 64 KiB: the allocator handles smaller blocks well
    _MOST = 26  # 2**26 bytes, 64 MiB: larger blocks are too rare
    _KEPT = 64  # blocks of each size

cdef void* _blocks[_MOST + 1][_KEPT]
cdef int _n_blocks[_MOST + 1]
cdef Py_ssize_t _pooled = 0
cdef Py_ssize_t _pool_limit = 64 << 20


def set_pool_limit(Py_ssize_t limit):
    """Set how many bytes of freed blocks are kept for new buffers; with 0, buffers have exact sizes.

    The system clears each page of a large block before it hands it out again, which takes longer than to
    decode or encode messages in it.
    """
    global _pool_limit
    _pool_limit = limit
    free_blocks()


def free_blocks():
    """Give the blocks that are kept for new buffers back to the system."""
    cdef int size
    for size in range(_LEAST, _MOST + 1):
        while _n_blocks[size]:
            free(_take_block(size))


cdef inline void* _take_block(int size) noexcept:
    global _pooled
    _n_blocks[size] -= 1
    _pooled -= <Py_ssize_t>1 << size
    return _blocks[size][_n_blocks[size]]


cdef void _give_back(void* block, Py_ssize_t room) noexcept:
    global _pooled
    cdef int size = _power(room)
    if (
        _LEAST <= size <= _MOST
        and room == <Py_ssize_t>1 << size
        and _pooled + room <= _pool_limit
        and _n_blocks[size] < _KEPT
    ):
        _blocks[size][_n_blocks[size]] = block
        _n_blocks[size] += 1
        _pooled += room
    else:
        free(block)


cdef inline int _power(Py_ssize_t size) noexcept nogil:
    """Return the least exponent of two whose power is at least `size`."""
    cdef int power = 0
    while (<Py_ssize_t>1 << power) < size:
        power += 1
    return power


cdef class Buffer:
    """Bytes that grow while they are written; then Python reads them through the buffer protocol."""

    cdef uint8_t* data
    cdef Py_ssize_t size
    cdef Py_ssize_t room

    def __dealloc__(self):
        if self.data != NULL:
            _give_back(self.data, self.room)

    def __len__(self):
        return self.size

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.size, 0, flags)


cdef Buffer new_buffer(Py_ssize_t room):
    """Return an empty buffer with room for `room` bytes.

    Raises:
        MemoryError: There is no more memory.
    """
    cdef Buffer buffer = Buffer.__new__(Buffer)
    cdef int size
    room = max(room, 1)
    if _pool_limit and room > <Py_ssize_t>1 << (_LEAST - 1):
        size = _power(room)
        if size <= _MOST:
            room = <Py_ssize_t>1 << size
            if _n_blocks[size]:
                buffer.data = <uint8_t*>_take_block(size)
    if buffer.data == NULL:
        buffer.data = <uint8_t*>malloc(room)
        if buffer.data == NULL:
            raise MemoryError(f"no memory for {room} bytes")
    buffer.room = room
    return buffer


cdef Buffer filled_buffer(Py_ssize_t size, int byte):
    """Return a buffer of `size` equal bytes."""
    cdef Buffer buffer = new_buffer(size)
    memset(buffer.data, byte, size)
    buffer.size = size
    return buffer


cdef inline bint reserve(Buffer buffer, Py_ssize_t more) noexcept nogil:
    """Make room for `more` bytes; return False if there is no memory."""
    if more <= buffer.room - buffer.size:
        return True
    return _grow(buffer, buffer.size + more)


cdef bint _grow(Buffer buffer, Py_ssize_t room) noexcept nogil:
    cdef uint8_t* data
    if _pool_limit:
        room = <Py_ssize_t>1 << _power(room)
    data = <uint8_t*>realloc(buffer.data, room)
    if data == NULL:
        return False
    buffer.data = data
    buffer.room = room
    return True


cdef inline uint8_t get_u8(const uint8_t* at) noexcept nogil:
    return at[0]


cdef inline uint16_t get_u16(const uint8_t* at) noexcept nogil:
    return <uint16_t>((at[0] << 8) | at[1])


cdef inline uint32_t get_u32(const uint8_t* at) noexcept nogil:
    return (<uint32_t>at[0] << 24) | (<uint32_t>at[1] << 16) | (<uint32_t>at[2] << 8) | at[3]


cdef inline uint64_t get_u64(const uint8_t* at) noexcept nogil:
    return (<uint64_t>get_u32(at) << 32) | get_u32(at + 4)


cdef inline uint64_t get_unsigned(const uint8_t* at, int width) noexcept nogil:
    """Return an unsigned integer of 1, 2 or 4 bytes."""
    if width == 4:
        return get_u32(at)
    return get_u16(at) if width == 2 else at[0]


cdef inline void put_u16(uint8_t* at, uint16_t value) noexcept nogil:
    at[0] = <uint8_t>(value >> 8)
    at[1] = <uint8_t>value


cdef inline void put_u32(uint8_t* at, uint32_t value) noexcept nogil:
    at[0] = <uint8_t>(value >> 24)
    at[1] = <uint8_t>(value >> 16)
    at[2] = <uint8_t>(value >> 8)
    at[3] = <uint8_t>value


cdef inline void put_u64(uint8_t* at, uint64_t value) noexcept nogil:
    put_u32(at, <uint32_t>(value >> 32))
    put_u32(at + 4, <uint32_t>value)


cdef bint is_utf8(const uint8_t* at, Py_ssize_t size) noexcept nogil:
    """Return whether the bytes are UTF-8 without overlong forms, surrogates and characters above U+10FFFF."""
    cdef const uint8_t* end = at + size
    cdef uint64_t word
    cdef uint8_t first
    while at < end:
        if end - at >= 8:
            memcpy(&word, at, 8)
            if not word & 0x8080808080808080ULL:
                at += 8
                continue
        first = at[0]
        if first < 0x80:
            at += 1
        elif first < 0xE0:
            if first < 0xC2 or end - at < 2 or at[1] & 0xC0 != 0x80:
                return False
            at += 2
        elif first < 0xF0:
            if end - at < 3 or at[1] & 0xC0 != 0x80 or at[2] & 0xC0 != 0x80:
                return False
            if (first == 0xE0 and at[1] < 0xA0) or (first == 0xED and at[1] >= 0xA0):
                return False
            at += 3
        else:
            if first > 0xF4 or end - at < 4:
                return False
            if at[1] & 0xC0 != 0x80 or at[2] & 0xC0 != 0x80 or at[3] & 0xC0 != 0x80:
                return False
            if (first == 0xF0 and at[1] < 0x90) or (first == 0xF4 and at[1] >= 0x90):
                return False
            at += 4
    return True
