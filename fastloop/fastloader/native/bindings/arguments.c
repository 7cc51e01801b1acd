/* Sets the errors for invalid arguments, and reads indices from buffers. */
#include "arguments.h"

PyObject *fp_refuse(const char *format, long long value) {
    return PyErr_Format(PyExc_ValueError, format, value);
}

PyObject *fp_refuse_index(int64_t index, int64_t num_rows) {
    return PyErr_Format(PyExc_IndexError, "index %lld is out of bounds for %lld samples",
                        (long long)index, (long long)num_rows);
}

PyObject *fp_refuse_cut_off(const fl_column *column) {
    PyObject *path = PyUnicode_DecodeFSDefault(column->path);
    if (path)
        PyErr_Format(PyExc_OSError,
                     "%U: this file has become shorter than the %lld bytes that are mapped", path,
                     (long long)column->end);
    Py_XDECREF(path);
    return NULL;
}

int fp_read_indices(const Py_buffer *buffer, fl_indices *indices, int64_t *count) {
    if (buffer->itemsize != 4 && buffer->itemsize != 8) {
        fp_refuse("indices of %lld bytes: allowed are int32 and int64", buffer->itemsize);
        return 0;
    }
    *indices = (fl_indices){buffer->buf, (int)buffer->itemsize};
    *count = buffer->len / buffer->itemsize;
    return 1;
}
