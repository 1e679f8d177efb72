# cython: language_level=3
"""Coverage counters of the kernel's basic blocks for libFuzzer.

gcc and clang call `__sanitizer_cov_trace_pc` in each block (-fsanitize-coverage=trace-pc), but only clang
creates the counters that libFuzzer reads. This module counts calls by a hash of the caller's address.
"""

from libc.stdint cimport uint8_t, uint64_t

cdef extern from * nogil:
    void* __builtin_return_address(unsigned int)

cdef enum:
    _POWER = 17

cdef uint8_t _counters[1 << _POWER]


cdef public void __sanitizer_cov_trace_pc() noexcept nogil:
    cdef uint64_t place = <uint64_t>__builtin_return_address(0) * 0x9E3779B97F4A7C15ULL
    _counters[place >> (64 - _POWER)] += 1


def counters():
    """Return the address and the number of the counters."""
    return <uint64_t>&_counters[0], 1 << _POWER
