/* Stream's object, and its parts: life and methods, arguments, batches. */
#ifndef FASTLOOP_STREAM_TYPE_H
#define FASTLOOP_STREAM_TYPE_H

#include "types.h"

typedef struct {
    PyObject_HEAD
    fl_stream *stream;       /* NULL: closed */
    fl_column *columns;
    PyObject *column_tuple, *order, *pool;
    PyObject *wrap;          /* makes a tensor of a capsule */
    PyObject *wrap_normally; /* the same in inference mode, as if outside of it */
    PyObject *is_inference;  /* returns True in inference mode */
    /* makes a batch of a tuple of tensors; None: one tensor is the batch */
    PyObject *assemble;
    PyObject *pull, *end;    /* called for indices, and after the last batch */
    PyObject *weak_references;
    Py_buffer delivered;     /* an int64, the number of batches */
    Py_buffer events;        /* memory for fl_event; empty: nothing is recorded */
    int pid, num_forks;      /* those of the process that opened the stream */
    /* is_busy: next() runs, and may have released the interpreter's lock */
    int is_busy, is_closing;
} stream_object;

/* Ends the threads. A fork has none of them: there the stream is left as it is. */
void fp_close_stream(stream_object *self);
/* Returns 1 with an error set if this process is a fork of the one that has opened the stream. */
int fp_is_forked(const stream_object *self);

/* ---- arguments: stream_arguments.c ---- */

/* Reads the plan of a new stream. The object holds all objects that the plan refers to. Returns 0
 * with an error set if an argument is wrong. */
int fp_read_plan(stream_object *self, PyObject *args, PyObject *kwargs, const module_state *state,
                 fl_plan *plan);

/* ---- batches: stream_batches.c ---- */

/* Returns the next batch, for tp_iternext: NULL at the end, or with an error set. */
PyObject *fp_next_batch(PyObject *stream);

#endif
