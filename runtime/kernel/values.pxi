# Readers and copiers of cells' values
#
# A reader writes the value of a cell to memory; a copier writes a value of any width, and returns its size. If
# the bytes are not as a server writes them, or the value needs more than 64 bits, a reader returns False and
# a copier -1; Python then converts the cell.


cdef struct _Type:
    int width  # of a value, in bytes
    int64_t low
    int64_t high
    int precision
    int scale
    bint zone

ctypedef bint (*_Reader)(const uint8_t*, Py_ssize_t, const _Type*, uint8_t*) noexcept nogil
ctypedef Py_ssize_t (*_Copier)(const uint8_t*, Py_ssize_t, uint8_t*) noexcept nogil

cdef int64_t _POWERS[19]
cdef int _i
_POWERS[0] = 1
for _i in range(1, 19):
    _POWERS[_i] = _POWERS[_i - 1] * 10

cdef double _EXACT[23]  # powers of ten that a double holds exactly
_EXACT[0] = 1
for _i in range(1, 23):
    _EXACT[_i] = _EXACT[_i - 1] * 10

cdef int64_t _EPOCH_DAYS = 10957  # from 1970 to PostgreSQL's epoch, 2000-01-01
cdef int64_t _FIRST_DAY = -719162  # 0001-01-01
cdef int64_t _LAST_DAY = 2932896  # 9999-12-31
cdef int64_t _DAY = 86400000000  # microseconds


# Fixed-width values, in text format


cdef bint _read_bool(const uint8_t* at, Py_ssize_t size, const _Type* type_, uint8_t* to) noexcept nogil:
    to[0] = at[0] == 0x74 if size else 0  # t
    return size == 1 and (at[0] == 0x74 or at[0] == 0x66)  # t, f


cdef bint _read_integer(const uint8_t* at, Py_ssize_t size, const _Type* type_, uint8_t* to) noexcept nogil:
    cdef int64_t value = 0
    cdef bint negative = size > 1 and at[0] == 0x2D  # -
    if negative:
        at += 1
        size -= 1
    if not 0 < size < 19 or (at[0] == 0x30 and (size > 1 or negative)):
        return False
    while size:
        if not 0x30 <= at[0] <= 0x39:
            return False
        value = value * 10 + at[0] - 0x30
        at += 1
        size -= 1
    if negative:
        value = -value
    memcpy(to, &value, type_.width)
    return type_.low <= value <= type_.high


cdef bint _read_decimal(const uint8_t* at, Py_ssize_t size, const _Type* type_, uint8_t* to) noexcept nogil:
    """Write 128 bits. The text has at most 18 digits, so that the value fits into 64 bits."""
    cdef int64_t value = 0
    cdef bint negative = size > 1 and at[0] == 0x2D  # -
    cdef const uint8_t* end = at + size
    cdef const uint8_t* start
    cdef Py_ssize_t whole, fraction = 0
    at += negative
    start = at
    while at < end and 0x30 <= at[0] <= 0x39 and at - start < 18:
        value = value * 10 + at[0] - 0x30
        at += 1
    whole = at - start
    if not whole or (start[0] == 0x30 and whole > 1):
        return False
    if whole > type_.precision - type_.scale and not (whole == 1 and start[0] == 0x30):
        return False
    if at < end:
        fraction = end - at - 1
        if at[0] != 0x2E or not 0 < fraction <= type_.scale or whole + fraction > 18:  # .
            return False
        at += 1
        while at < end:
            if not 0x30 <= at[0] <= 0x39:
                return False
            value = value * 10 + at[0] - 0x30
            at += 1
    if whole + type_.scale > 18:
        return False
    value *= _POWERS[type_.scale - fraction]
    _put_decimal(to, -value if negative else value)
    return True


cdef inline void _put_decimal(uint8_t* to, int64_t value) noexcept nogil:
    cdef int64_t sign = -1 if value < 0 else 0
    memcpy(to, &value, 8)
    memcpy(to + 8, &sign, 8)


cdef bint _read_float(const uint8_t* at, Py_ssize_t size, const _Type* type_, uint8_t* to) noexcept nogil:
    cdef uint64_t mantissa = 0
    cdef int exponent = 0, given = 0, digits = 0
    cdef bint is_zero = True, exponent_negative = False
    cdef const uint8_t* end = at + size
    cdef const uint8_t* start = at
    cdef char text[64]
    cdef char* stopped
    cdef double value
    cdef float single
    if size >= 64:
        return False
    if at < end and at[0] == 0x2D:  # -
        at += 1
    if at == end or not 0x30 <= at[0] <= 0x39:
        return False
    while at < end and 0x30 <= at[0] <= 0x39:
        mantissa = mantissa * 10 + at[0] - 0x30
        is_zero = is_zero and at[0] == 0x30
        digits += 1
        at += 1
    if at < end and at[0] == 0x2E:  # .
        at += 1
        if at == end or not 0x30 <= at[0] <= 0x39:
            return False
        while at < end and 0x30 <= at[0] <= 0x39:
            mantissa = mantissa * 10 + at[0] - 0x30
            is_zero = is_zero and at[0] == 0x30
            digits += 1
            exponent -= 1
            at += 1
    if at < end and at[0] == 0x65:  # e
        at += 1
        if at < end and (at[0] == 0x2D or at[0] == 0x2B):  # -, +
            exponent_negative = at[0] == 0x2D
            at += 1
        if at == end or end - at > 4:
            return False
        while at < end:
            if not 0x30 <= at[0] <= 0x39:
                return False
            given = given * 10 + at[0] - 0x30
            at += 1
        exponent += -given if exponent_negative else given
    elif at < end:
        return False
    if type_.width == 8 and digits < 19 and mantissa < <uint64_t>1 << 53 and -22 <= exponent <= 22:
        value = <double>mantissa
        value = value / _EXACT[-exponent] if exponent < 0 else value * _EXACT[exponent]
        if start[0] == 0x2D:
            value = -value
        memcpy(to, &value, 8)
        return True
    memcpy(text, start, size)
    text[size] = 0
    if type_.width == 8:
        value = strtod(text, &stopped)
        memcpy(to, &value, 8)
        return stopped == text + size and not isinf(value) and (value != 0 or is_zero)
    single = strtof(text, &stopped)
    memcpy(to, &single, 4)
    return stopped == text + size and not isinf(single) and (single != 0 or is_zero)


cdef inline int _two_digits(const uint8_t* at) noexcept nogil:
    """Return a number of two digits, or -1 if they are not digits."""
    if 0x30 <= at[0] <= 0x39 and 0x30 <= at[1] <= 0x39:
        return (at[0] - 0x30) * 10 + at[1] - 0x30
    return -1


cdef int _DAYS_OF_MONTHS[13]
_DAYS_OF_MONTHS[:] = [0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]


cdef bint _days(const uint8_t* at, int64_t* days) noexcept nogil:
    """Write the days from 1970 to a date of ten characters; return False if it is invalid."""
    cdef int century = _two_digits(at), of_century = _two_digits(at + 2)
    cdef int month = _two_digits(at + 5), day = _two_digits(at + 8)
    cdef int year = century * 100 + of_century, last, era, of_era
    if century < 0 or of_century < 0 or year < 1 or at[4] != 0x2D or at[7] != 0x2D or not 1 <= month <= 12:
        return False
    last = _DAYS_OF_MONTHS[month]
    if month == 2 and year % 4 == 0 and (year % 100 or year % 400 == 0):
        last = 29
    if not 1 <= day <= last:
        return False
    # Years begin in March here, so that the leap day is the last day of a year.
    if month <= 2:
        year -= 1
        month += 12
    era = year // 400
    of_era = year - era * 400
    days[0] = era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + (153 * (month - 3) + 2) // 5 + day - 719469
    return True


cdef bint _read_date(const uint8_t* at, Py_ssize_t size, const _Type* type_, uint8_t* to) noexcept nogil:
    cdef int64_t days = 0
    cdef int32_t value
    if size != 10 or not _days(at, &days):
        return False
    value = <int32_t>days
    memcpy(to, &value, 4)
    return True


cdef bint _read_timestamp(const uint8_t* at, Py_ssize_t size, const _Type* type_, uint8_t* to) noexcept nogil:
    cdef const uint8_t* end = at + size
    cdef int64_t days = 0, value
    cdef int hours, minutes, seconds, micros = 0, digits = 0, zone, zone_minutes = 0
    cdef bint west
    if size < 19 or at[10] != 0x20 or at[13] != 0x3A or at[16] != 0x3A or not _days(at, &days):  # space, :
        return False
    hours, minutes, seconds = _two_digits(at + 11), _two_digits(at + 14), _two_digits(at + 17)
    if not 0 <= hours < 24 or not 0 <= minutes < 60 or not 0 <= seconds < 60:
        return False
    at += 19
    if at < end and at[0] == 0x2E:  # .
        at += 1
        while at < end and 0x30 <= at[0] <= 0x39 and digits < 6:
            micros = micros * 10 + at[0] - 0x30
            digits += 1
            at += 1
        if not digits:
            return False
        micros *= <int>_POWERS[6 - digits]
    value = days * _DAY + (hours * 3600 + minutes * 60 + seconds) * <int64_t>1000000 + micros
    if type_.zone:
        if end - at != 3 and end - at != 6:
            return False
        west = at[0] == 0x2D  # -
        zone = _two_digits(at + 1)
        if (not west and at[0] != 0x2B) or not 0 <= zone < 16:  # +
            return False
        if end - at == 6:
            zone_minutes = _two_digits(at + 4)
            if at[3] != 0x3A or not 0 <= zone_minutes < 60:  # :
                return False
        at = end
        value += (zone * 60 + zone_minutes) * <int64_t>60000000 * (1 if west else -1)
    memcpy(to, &value, 8)
    return at == end and _FIRST_DAY * _DAY <= value < (_LAST_DAY + 1) * _DAY


# Fixed-width values, in binary format


cdef bint _receive_bool(const uint8_t* at, Py_ssize_t size, const _Type* type_, uint8_t* to) noexcept nogil:
    to[0] = at[0] if size else 0
    return size == 1 and at[0] <= 1


cdef bint _receive_int2(const uint8_t* at, Py_ssize_t size, const _Type* type_, uint8_t* to) noexcept nogil:
    cdef int16_t value
    if size != 2:
        return False
    value = <int16_t>get_u16(at)
    memcpy(to, &value, sizeof(value))
    return True


cdef bint _receive_int4(const uint8_t* at, Py_ssize_t size, const _Type* type_, uint8_t* to) noexcept nogil:
    cdef int32_t value
    if size != 4:
        return False
    value = <int32_t>get_u32(at)
    memcpy(to, &value, sizeof(value))
    return True


cdef bint _receive_int8(const uint8_t* at, Py_ssize_t size, const _Type* type_, uint8_t* to) noexcept nogil:
    cdef int64_t value
    if size != 8:
        return False
    value = <int64_t>get_u64(at)
    memcpy(to, &value, sizeof(value))
    return True


cdef bint _receive_oid(const uint8_t* at, Py_ssize_t size, const _Type* type_, uint8_t* to) noexcept nogil:
    cdef int64_t value
    if size != 4:
        return False
    value = get_u32(at)
    memcpy(to, &value, sizeof(value))
    return True


cdef bint _receive_float4(const uint8_t* at, Py_ssize_t size, const _Type* type_, uint8_t* to) noexcept nogil:
    cdef uint32_t bits
    cdef float value
    if size != 4:
        return False
    bits = get_u32(at)
    memcpy(&value, &bits, 4)
    if value != value:  # text format has only one NaN
        value = NAN
    memcpy(to, &value, 4)
    return True


cdef bint _receive_float8(const uint8_t* at, Py_ssize_t size, const _Type* type_, uint8_t* to) noexcept nogil:
    cdef uint64_t bits
    cdef double value
    if size != 8:
        return False
    bits = get_u64(at)
    memcpy(&value, &bits, 8)
    if value != value:  # text format has only one NaN
        value = NAN
    memcpy(to, &value, 8)
    return True


cdef bint _receive_date(const uint8_t* at, Py_ssize_t size, const _Type* type_, uint8_t* to) noexcept nogil:
    cdef int64_t days
    cdef int32_t value
    if size != 4:
        return False
    days = <int32_t>get_u32(at) + _EPOCH_DAYS
    value = <int32_t>days
    memcpy(to, &value, 4)
    return _FIRST_DAY <= days <= _LAST_DAY


cdef bint _receive_timestamp(const uint8_t* at, Py_ssize_t size, const _Type* type_, uint8_t* to) noexcept nogil:
    cdef int64_t value
    if size != 8:
        return False
    value = <int64_t>get_u64(at)
    if not (_FIRST_DAY - _EPOCH_DAYS) * _DAY <= value < (_LAST_DAY + 1 - _EPOCH_DAYS) * _DAY:
        return False
    value += _EPOCH_DAYS * _DAY
    memcpy(to, &value, 8)
    return True


cdef bint _receive_numeric(const uint8_t* at, Py_ssize_t size, const _Type* type_, uint8_t* to) noexcept nogil:
    """Write groups of four digits (numeric_send) as 128 bits: at most 18 digits, which fit into 64 bits."""
    cdef int groups, weight, sign, shown, i, group, power
    cdef int64_t value = 0
    if size < 8:
        return False
    groups, weight, sign, shown = get_u16(at), <int16_t>get_u16(at + 2), get_u16(at + 4), get_u16(at + 6)
    if size != 8 + 2 * groups or (sign != 0 and sign != 0x4000) or shown > type_.scale or type_.precision > 18:
        return False
    for i in range(groups):
        group = get_u16(at + 8 + 2 * i)
        power = 4 * (weight - i) + shown
        if group > 9999 or power > 15 or power < -3:
            if group:
                return False
            continue
        if power >= 0:
            if group > _POWERS[18] // _POWERS[power]:
                return False
            value += group * _POWERS[power]
        else:
            if group % _POWERS[-power]:
                return False
            value += group // _POWERS[-power]
        if value >= _POWERS[18]:
            return False
    if value >= _POWERS[type_.precision - type_.scale + shown]:
        return False
    value *= _POWERS[type_.scale - shown]
    _put_decimal(to, -value if sign else value)
    return True


# Values of any width


cdef Py_ssize_t _copy_text(const uint8_t* at, Py_ssize_t size, uint8_t* to) noexcept nogil:
    """Copy text, in either format: UTF-8 without a zero byte."""
    memcpy(to, at, size)
    return size if is_utf8(at, size) and memchr(at, 0, size) == NULL else -1


cdef Py_ssize_t _copy_bytes(const uint8_t* at, Py_ssize_t size, uint8_t* to) noexcept nogil:
    memcpy(to, at, size)
    return size


cdef inline int _hex_digit(uint8_t digit) noexcept nogil:
    if 0x30 <= digit <= 0x39:
        return digit - 0x30
    return digit - 0x57 if 0x61 <= digit <= 0x66 else -1  # a, f


cdef Py_ssize_t _copy_hex(const uint8_t* at, Py_ssize_t size, uint8_t* to) noexcept nogil:
    """Copy the bytes of a bytea in text format (byteaout): a backslash, x, and two digits for each byte."""
    cdef const uint8_t* end = at + size
    cdef int high, low
    if size < 2 or size % 2 or at[0] != 0x5C or at[1] != 0x78:
        return -1
    at += 2
    while at < end:
        high, low = _hex_digit(at[0]), _hex_digit(at[1])
        if high < 0 or low < 0:
            return -1
        to[0] = <uint8_t>(high << 4 | low)
        to += 1
        at += 2
    return size // 2 - 1


cdef Py_ssize_t _copy_uuid(const uint8_t* at, Py_ssize_t size, uint8_t* to) noexcept nogil:
    cdef const char* digits = "0123456789abcdef"
    cdef int i
    if size != 16:
        return -1
    for i in range(16):
        if i == 4 or i == 6 or i == 8 or i == 10:
            to[0] = 0x2D  # -
            to += 1
        to[0] = digits[at[i] >> 4]
        to[1] = digits[at[i] & 15]
        to += 2
    return 36


cdef _Reader _text_reader(str kind) except? NULL:
    """Return the reader of cells in text format, by kind of Arrow type."""
    if kind == "bool":
        return _read_bool
    if kind == "integer":
        return _read_integer
    if kind == "float":
        return _read_float
    if kind == "decimal":
        return _read_decimal
    if kind == "date":
        return _read_date
    if kind == "timestamp":
        return _read_timestamp
    raise ValueError(kind)


cdef _Reader _binary_reader(str send) noexcept:
    """Return the reader of cells in binary format, by send function; NULL if Python reads these cells."""
    if send == "boolsend":
        return _receive_bool
    if send == "int2send":
        return _receive_int2
    if send == "int4send":
        return _receive_int4
    if send == "int8send":
        return _receive_int8
    if send in ("oidsend", "xidsend", "cidsend"):
        return _receive_oid
    if send == "float4send":
        return _receive_float4
    if send == "float8send":
        return _receive_float8
    if send == "date_send":
        return _receive_date
    if send in ("timestamp_send", "timestamptz_send"):
        return _receive_timestamp
    if send == "numeric_send":
        return _receive_numeric
    return NULL


cdef _Copier _text_copier(str kind) except? NULL:
    """Return the copier of cells in text format, by kind: see `read_any`."""
    if kind == "text":
        return _copy_text
    if kind == "hex":
        return _copy_hex
    if kind == "raw":
        return _copy_bytes
    raise ValueError(kind)


cdef _Copier _binary_copier(str send) noexcept:
    """Return the copier of cells in binary format, by send function or `raw`; NULL if Python reads them."""
    if send in ("raw", "byteasend"):
        return _copy_bytes
    if send in ("textsend", "varcharsend", "bpcharsend", "namesend", "json_send"):
        return _copy_text
    if send == "uuid_send":
        return _copy_uuid
    return NULL
