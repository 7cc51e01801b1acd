/* gather_into: rows of columns at given indices, written to given memory. */
#include "types.h"

#include <stdlib.h>

#include "arguments.h"

/* Returns None, or NULL with an error set. Nothing is written unless all indices are valid. */
static PyObject *gather_checked(const fl_column *columns, Py_buffer *outs, Py_ssize_t num_columns,
                                const Py_buffer *array, int num_threads) {
    fl_gather gather = {.columns = columns, .num_columns = (int)num_columns};
    if (!fp_read_indices(array, &gather.indices, &gather.count))
        return NULL;
    char **memory = calloc((size_t)num_columns + 1, sizeof *memory);
    if (!memory)
        return PyErr_NoMemory();
    gather.outs = memory;
    int64_t invalid = 0, num_rows = columns[0].num_rows;
    for (Py_ssize_t k = 0; k < num_columns; k++) {
        memory[k] = outs[k].buf;
        if (outs[k].len < gather.count * columns[k].nbytes) {
            free(memory);
            return fp_refuse("outs: %lld bytes are fewer than the rows have", outs[k].len);
        }
    }
    /* Looked at last, directly before rows are read. */
    int cut_column = fl_find_cut_off(columns, gather.num_columns);
    if (cut_column >= 0) {
        free(memory);
        return fp_refuse_cut_off(&columns[cut_column]);
    }
    /* The buffers that the caller has opened keep the memory in place without the interpreter's
     * lock. */
    Py_BEGIN_ALLOW_THREADS
    invalid = fl_find_invalid(gather.indices, gather.count, num_rows);
    if (invalid < 0)
        fl_gather_rows(&gather, num_threads);
    Py_END_ALLOW_THREADS
    free(memory);
    if (invalid >= 0)
        return fp_refuse_index(fl_index(gather.indices, invalid), num_rows);
    Py_RETURN_NONE;
}

PyObject *fp_gather_into(PyObject *module, PyObject *args) {
    module_state *state = PyModule_GetState(module);
    PyObject *tuple, *targets, *result = NULL;
    Py_buffer array;
    int num_threads;
    if (!PyArg_ParseTuple(args, "O!y*O!i", &PyTuple_Type, &tuple, &array, &PyTuple_Type, &targets,
                          &num_threads))
        return NULL;
    Py_ssize_t count = PyTuple_Size(tuple), opened = 0;
    fl_column *columns = fp_read_columns(tuple, state->column);
    Py_buffer *outs = calloc((size_t)count + 1, sizeof *outs);
    if (columns && outs && PyTuple_Size(targets) == count) {
        while (opened < count &&
               !PyObject_GetBuffer(PyTuple_GetItem(targets, opened), &outs[opened],
                                   PyBUF_WRITABLE))
            opened++;
        if (opened == count)
            result = gather_checked(columns, outs, count, &array, num_threads);
    } else if (columns && !outs) {
        PyErr_NoMemory();
    } else if (columns) {
        fp_refuse("outs: %lld, allowed is one for each column", PyTuple_Size(targets));
    }
    while (opened)
        PyBuffer_Release(&outs[--opened]);
    free(outs);
    free(columns);
    PyBuffer_Release(&array);
    return result;
}
