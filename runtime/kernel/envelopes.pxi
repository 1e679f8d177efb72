# XLogData and CopyData, which a walsender puts around messages

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT32_MAX

cdef enum:
    _COPY_HEAD = 5  # bytes of a CopyData message before its contents: type and size


cdef inline Py_ssize_t _contents_size(const uint8_t[::1] data, Py_ssize_t at) noexcept nogil:
    """Return the size of the contents of the CopyData message at `at`, or -1 if the message is not whole."""
    cdef Py_ssize_t left = len(data) - at - _COPY_HEAD
    cdef Py_ssize_t size
    if left < 0 or data[at] != c'd':
        return -1
    size = <Py_ssize_t>get_u32(&data[at + 1]) - 4
    return size if size <= left else -1


def split_xlog_data(payloads):
    """Return the messages inside XLogData as one column.

    Args:
        payloads: The contents of each CopyData.

    Returns:
        Buffers of Arrow arrays: wal_start of each XLogData (int64), the offsets of the messages in them (int32), and
        their bytes; and a list of the other payloads, each with the number of XLogData before it.

    Raises:
        OverflowError: The messages have more than 2 GB.
        TypeError: A payload is not bytes-like.
    """
    payloads = tuple(payloads)
    held = PyBytes_FromStringAndSize(NULL, len(payloads) * sizeof(Py_buffer))
    cdef Py_buffer* views = <Py_buffer*>PyBytes_AS_STRING(held)
    cdef Py_ssize_t i, rows = 0, size = 0
    cdef list others = []
    try:
        for payload in payloads:
            _look(payload, &views[rows])
            if _is_xlog_data(&views[rows]):
                size += views[rows].len - XLOG_DATA_HEAD
                rows += 1
            else:
                PyBuffer_Release(&views[rows])
                others.append((rows, payload))
        if size > INT32_MAX:
            raise OverflowError(f"{rows} messages have {size} bytes, more than 2 GB: give fewer")
        return *_copied(views, rows, size), others
    finally:
        for i in range(rows):
            PyBuffer_Release(&views[i])


def split_copy_data(const uint8_t[::1] data):
    """Return the messages inside XLogData as one column.

    Args:
        data: Whole CopyData messages, as far as `copy_data_end` has found.

    Returns:
        As `split_xlog_data`.

    Raises:
        OverflowError: The messages have more than 2 GB.
        ValueError: The data are not whole CopyData messages.
    """
    cdef Py_ssize_t at = 0, rows = 0, size = 0, length
    cdef list others = []
    while at < len(data):
        length = _contents_size(data, at)
        if length < 0:
            raise ValueError(f"byte {at} is not the start of a whole CopyData message")
        at += _COPY_HEAD
        if length >= XLOG_DATA_HEAD and data[at] == XLOG_DATA:
            rows += 1
            size += length - XLOG_DATA_HEAD
        else:
            others.append((rows, bytes(data[at : at + length])))
        at += length
    if size > INT32_MAX:
        raise OverflowError(f"{rows} messages have {size} bytes, more than 2 GB: give fewer")
    lsns = PyBytes_FromStringAndSize(NULL, 8 * rows)
    offsets = PyBytes_FromStringAndSize(NULL, 4 * (rows + 1))
    contents = PyBytes_FromStringAndSize(NULL, size)
    cdef uint64_t* lsn = <uint64_t*>PyBytes_AS_STRING(lsns)
    cdef int32_t* offset = <int32_t*>PyBytes_AS_STRING(offsets)
    cdef char* target = PyBytes_AS_STRING(contents)
    cdef Py_ssize_t row = 0
    offset[0] = 0
    at = 0
    with nogil:
        while row < rows:
            length = _contents_size(data, at)
            at += _COPY_HEAD
            if length >= XLOG_DATA_HEAD and data[at] == XLOG_DATA:
                lsn[row] = get_u64(&data[at + XLOG_DATA_WAL_START])
                memcpy(target + offset[row], &data[at] + XLOG_DATA_HEAD, length - XLOG_DATA_HEAD)
                offset[row + 1] = <int32_t>(offset[row] + length - XLOG_DATA_HEAD)
                row += 1
            at += length
    return lsns, offsets, contents, others


cdef int _look(object payload, Py_buffer* view) except -1:
    try:
        return PyObject_GetBuffer(payload, view, PyBUF_SIMPLE)
    except (BufferError, TypeError):  # the bytes are not contiguous, or there are none
        return PyObject_GetBuffer(bytes(memoryview(payload)), view, PyBUF_SIMPLE)


cdef inline bint _is_xlog_data(const Py_buffer* view) noexcept:
    return view.len >= XLOG_DATA_HEAD and (<const uint8_t*>view.buf)[0] == XLOG_DATA


# Not in instances of Buffer, whose blocks are reused: a recorder holds many results, of any size.
cdef tuple _copied(const Py_buffer* views, Py_ssize_t rows, Py_ssize_t size):
    lsns = PyBytes_FromStringAndSize(NULL, 8 * rows)
    offsets = PyBytes_FromStringAndSize(NULL, 4 * (rows + 1))
    data = PyBytes_FromStringAndSize(NULL, size)
    cdef uint64_t* lsn = <uint64_t*>PyBytes_AS_STRING(lsns)
    cdef int32_t* offset = <int32_t*>PyBytes_AS_STRING(offsets)
    cdef char* target = PyBytes_AS_STRING(data)
    cdef const uint8_t* at
    cdef Py_ssize_t i, length
    offset[0] = 0
    for i in range(rows):
        at = <const uint8_t*>views[i].buf
        length = views[i].len - XLOG_DATA_HEAD
        lsn[i] = get_u64(at + XLOG_DATA_WAL_START)
        memcpy(target + offset[i], at + XLOG_DATA_HEAD, length)
        offset[i + 1] = <int32_t>(offset[i] + length)
    return lsns, offsets, data
