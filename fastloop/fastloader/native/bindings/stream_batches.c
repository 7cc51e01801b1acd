/* The batches of a Stream: next() works, or waits, until there is one, and calls for indices. */
#include "stream_type.h"

#include "arguments.h"
#include "capsules.h"

/* A waiting next() looks for signals, such as Ctrl-C, at this interval. */
enum { WAIT_MS = 50 };

/* Waits, works or has indices fed. Returns the status afterwards, or -1 with an error set.
 * is_busy is set as other threads may run meanwhile: they must neither call next() nor free the
 * stream. */
static int go_on(stream_object *self, int status, fl_batch *batch) {
    self->is_busy = 1;
    if (status == FL_STARVED) {
        PyObject *result = PyObject_CallFunctionObjArgs(self->pull, (PyObject *)self, NULL);
        status = result ? FL_WAITING : -1;
        Py_XDECREF(result);
        if (result)
            status = fl_try_next(self->stream, batch);
    } else {
        Py_BEGIN_ALLOW_THREADS
        status = fl_next(self->stream, WAIT_MS, batch);
        Py_END_ALLOW_THREADS
        if (status == FL_WAITING && PyErr_CheckSignals())
            status = -1;
    }
    self->is_busy = 0;
    /* Another thread has called close(), which fl_next() may have noticed or not. */
    return self->is_closing ? FL_END : status;
}

/* Closes the stream and calls `end`, which may raise. Returns NULL with or without an error,
 * which is how tp_iternext ends. */
static PyObject *end_stream(stream_object *self) {
    PyObject *end = self->end;
    Py_INCREF(end);
    fp_close_stream(self);
    PyObject *result = PyObject_CallNoArgs(end);
    Py_XDECREF(result);
    Py_DECREF(end);
    return NULL;
}

/* Returns the batch as the loop gets it; NULL with an error set. */
static PyObject *lend_batch(stream_object *self, const fl_batch *batch) {
    PyObject *is_inference = PyObject_CallNoArgs(self->is_inference);
    if (!is_inference)
        return NULL;
    /* A tensor that is made in inference mode can't take part in autograd later. So batches are
     * made outside of it, whatever mode the loop is in. */
    PyObject *wrap = is_inference == Py_True ? self->wrap_normally : self->wrap;
    Py_DECREF(is_inference);
    PyObject *tensors = fp_lend_columns(self->column_tuple, wrap, batch), *result = NULL;
    if (!tensors)
        return NULL;
    /* Counted before `assemble` runs: the loader's position is after this batch, whatever it
     * does. */
    ++*(int64_t *)self->delivered.buf;
    /* The most frequent structures need no call: a tuple, and a single tensor below. */
    if (self->assemble == (PyObject *)&PyTuple_Type)
        return tensors;
    if (self->assemble != Py_None) {
        result = PyObject_CallFunctionObjArgs(self->assemble, tensors, NULL);
    } else {
        result = PyTuple_GetItem(tensors, 0);
        Py_INCREF(result);
    }
    Py_DECREF(tensors);
    return result;
}

PyObject *fp_next_batch(PyObject *object) {
    stream_object *self = (stream_object *)object;
    fl_batch batch;
    if (fp_is_forked(self))
        return NULL;
    if (self->is_busy)
        return PyErr_Format(PyExc_ValueError, "another thread waits for this epoch's next batch");
    if (!self->stream)
        return NULL;
    int status = fl_try_next(self->stream, &batch);
    while (status == FL_WAITING || status == FL_STARVED)
        status = go_on(self, status, &batch);
    if (status == FL_READY)
        return lend_batch(self, &batch);
    if (status == FL_END && !self->is_closing)
        return end_stream(self);
    /* Every error ends the epoch. */
    if (status == FL_INVALID_INDEX)
        fp_refuse_index(batch.invalid_index, self->columns[0].num_rows);
    if (status == FL_CUT_OFF)
        fp_refuse_cut_off(&self->columns[batch.column]);
    if (status == FL_NO_MEMORY)
        PyErr_NoMemory();
    fp_close_stream(self);
    return NULL;
}
