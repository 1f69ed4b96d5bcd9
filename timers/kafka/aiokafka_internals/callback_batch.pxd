# The types of callback_batch.py that only a compiler needs.

cdef bytes _ID_HEADER
cdef Py_ssize_t _NUMBERS_ROOM

cdef class CallbackBatch:
    cdef public list offsets
    cdef bytearray _data
    cdef Py_ssize_t _room
    cdef Py_ssize_t _end
    cdef Py_ssize_t _max_bytes
    cdef Py_ssize_t _count
    cdef long long _first_ms
    cdef long long _last_ms
    cdef tuple _state
    cdef bytearray _built
    cdef list _texts
    cdef list _names
    cdef bint _write(
        self, long long now_ms, bytes key, bytes value, headers, bytes id_prefix, long long number, bytes ending,
        Py_ssize_t ending_count
    ) except -1

cdef bytes _name(str text)
cdef Py_ssize_t _size_of(long long number) noexcept nogil
cdef Py_ssize_t _put(unsigned char* data, Py_ssize_t at, long long number) noexcept nogil
cdef Py_ssize_t _copy(unsigned char* data, Py_ssize_t at, const unsigned char* source, Py_ssize_t size) noexcept nogil
cdef unsigned long long murmur2(const unsigned char* data, Py_ssize_t size) noexcept nogil
