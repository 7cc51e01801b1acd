/* Column: rows of a buffer, and how they are delivered. The object holds the buffers, so that
 * they cannot be freed or resized while a stream reads them. */
#include "types.h"

#include <stdlib.h>

#include "arguments.h"

/* Also runs for an object with refused arguments: fields that are zero are not released. */
static void column_free(PyObject *object) {
    column_object *self = (column_object *)object;
    fl_release_conversion(&self->column);
    PyBuffer_Release(&self->rows);
    PyBuffer_Release(&self->factor);
    PyBuffer_Release(&self->offset);
    Py_XDECREF(self->path);
    fp_free_object(object);
}

/* Returns how many numbers the tuple has, or -1 with an error set. */
static int read_numbers(PyObject *tuple, int64_t *numbers) {
    Py_ssize_t count = PyTuple_Size(tuple);
    if (count > FP_MAX_DIMENSIONS) {
        fp_refuse("samples of %lld dimensions: allowed are 16", count);
        return -1;
    }
    for (Py_ssize_t k = 0; k < count; k++)
        numbers[k] = PyLong_AsLongLong(PyTuple_GetItem(tuple, k));
    return PyErr_Occurred() ? -1 : (int)count;
}

/* Returns 1 if every row lies within the buffer and the conversion's numbers fit each other,
 * else 0 with an error set. The core checks neither. */
static int check_column(const column_object *self, int64_t offset) {
    const fl_column *column = &self->column;
    /* Rows at random positions begin at any of `positions` items, however many rows there are. */
    int64_t last = column->positions ? (int64_t)column->positions - 1 : column->num_rows - 1;
    int64_t needed = column->num_rows ? offset + last * column->stride + column->source_nbytes : 0;
    if (column->num_rows < 0 || offset < 0 || column->stride < 0 || needed > self->rows.len) {
        fp_refuse("rows end at byte %lld, behind their buffer", needed);
        return 0;
    }
    int64_t items = column->channels * column->pixels;
    int is_converted = column->source != FL_BYTES, num = (int)column->num_factors;
    int fits = column->num_factors == 0 || num == 1 || column->num_factors == column->channels;
    fits = fits && self->factor.len >= 4 * column->num_factors;
    fits = fits && self->offset.len >= 4 * column->num_factors;
    if (is_converted ? !fits || items < 0 : column->source_nbytes != column->nbytes) {
        fp_refuse("a conversion of %lld items does not fit its rows", items);
        return 0;
    }
    return 1;
}

/* Reads (path, device, inode, bytes that the file must have), or None. Returns 0 with an error
 * set. */
static int read_file(column_object *self, PyObject *file) {
    PyObject *path;
    unsigned long long device, inode;
    long long end;
    if (!file || file == Py_None)
        return 1;
    if (!PyTuple_Check(file) || !PyArg_ParseTuple(file, "SKKL", &path, &device, &inode, &end)) {
        if (!PyErr_Occurred())
            fp_refuse("file: allowed are None and a tuple of %lld", 4);
        return 0;
    }
    Py_INCREF(path);
    self->path = path;
    self->column.path = PyBytes_AsString(path);
    self->column.device = device, self->column.inode = inode, self->column.end = end;
    return 1;
}

static PyObject *column_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"rows", "num_rows", "stride", "nbytes", "begin", "positions", "seed",
                            "types", "layout", "factor", "offset", "dtype", "shape", "strides",
                            "file", NULL};
    column_object *self = fp_new_object(type);
    if (!self)
        return NULL;
    fl_column *column = &self->column;
    long long num_rows, stride, source_nbytes, nbytes, begin, channels, pixels, num_factors;
    int source, target, code, bits;
    PyObject *shape, *strides, *file = NULL;
    int is_read = PyArg_ParseTupleAndKeywords(
        args, kwargs, "y*LL(LL)LKK(ii)(LLiiL)y*y*(ii)O!O!|O", names, &self->rows, &num_rows, &stride,
        &source_nbytes, &nbytes, &begin, &column->positions, &column->seed, &source, &target,
        &channels, &pixels, &column->source_hwc, &column->target_hwc, &num_factors, &self->factor,
        &self->offset, &code, &bits, &PyTuple_Type, &shape, &PyTuple_Type, &strides, &file);
    if (is_read) {
        /* Nothing is read at this address before check_column() has accepted it. */
        column->base = (const char *)self->rows.buf + begin;
        column->num_rows = num_rows, column->stride = stride;
        column->source_nbytes = source_nbytes, column->nbytes = nbytes;
        column->source = (fl_type)source, column->target = (fl_type)target;
        column->channels = channels, column->pixels = pixels, column->num_factors = num_factors;
        column->factor = self->factor.buf, column->offset = self->offset.buf;
        self->type = (dl_type){(uint8_t)code, (uint8_t)bits, 1};
        self->num_dimensions = read_numbers(shape, self->shape);
        is_read = self->num_dimensions >= 0 && read_numbers(strides, self->strides) >= 0 &&
                  check_column(self, begin) && read_file(self, file);
    }
    if (is_read && source != FL_BYTES && !fl_prepare_conversion(column)) {
        PyErr_NoMemory();
        is_read = 0;
    }
    if (!is_read) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static PyType_Slot column_slots[] = {
    {Py_tp_doc, "Rows of memory, and how they are delivered."},
    {Py_tp_new, column_new},
    {Py_tp_dealloc, column_free},
    {0, NULL},
};
PyType_Spec fp_column_spec = {"fastloop.fastloader._core.Column", sizeof(column_object), 0,
                              Py_TPFLAGS_DEFAULT, column_slots};

fl_column *fp_read_columns(PyObject *tuple, PyTypeObject *type) {
    Py_ssize_t count = PyTuple_Size(tuple);
    fl_column *columns = calloc((size_t)count + 1, sizeof *columns);
    if (!columns)
        return (fl_column *)PyErr_NoMemory();
    for (Py_ssize_t k = 0; k < count; k++) {
        PyObject *item = PyTuple_GetItem(tuple, k);
        if (!PyObject_TypeCheck(item, type)) {
            PyErr_SetString(PyExc_TypeError, "columns: allowed are Column objects");
        } else {
            columns[k] = ((column_object *)item)->column;
            if (columns[k].num_rows != columns[0].num_rows)
                fp_refuse("columns of one length are allowed, got %lld rows", columns[k].num_rows);
        }
    }
    if (!count)
        fp_refuse("columns: %lld, allowed is 1 or more", 0);
    if (PyErr_Occurred()) {
        free(columns);
        return NULL;
    }
    return columns;
}
