/* Stream's object, and its parts: life and methods, arguments, batches. */
#ifndef FASTLOOP_STREAM_TYPE_H
#define FASTLOOP_STREAM_TYPE_H

#include "types.h"

typedef struct {
    PyObject_HEAD
    fl_stream *stream;       /* NULL: closed */
    fl_column *columns;
    PyObject *column_tuple, *order, *pool;
    PyObject *wrap;          /* from a capsule to a tensor */
    PyObject *wrap_normally; /* likewise in inference mode, of which batches don't depend */
    PyObject *is_inference;  /* True in inference mode */
    PyObject *assemble;      /* from a tuple of tensors to a batch; None: the only tensor is one */
    PyObject *pull, *end;    /* called for indices, and after the last batch */
    PyObject *weak_references;
    Py_buffer delivered;     /* an int64, the number of batches */
    Py_buffer events;        /* of what is recorded; without memory: nothing is */
    int pid, num_forks;      /* of the process, when the stream was opened */
    int is_busy, is_closing; /* in next(), which may have released the interpreter's lock */
} stream_object;

/* End the threads. In a fork, which has none of them, the stream is left as it is. */
void fp_close_stream(stream_object *self);
/* 1, with an error set, where this process is a fork of the one that has opened the stream. */
int fp_is_forked(const stream_object *self);

/* ---- arguments: stream_arguments.c ---- */

/* Read the plan of a new stream, whose object holds what it refers to; 0 with an error set. */
int fp_read_plan(stream_object *self, PyObject *args, PyObject *kwargs, const module_state *state,
                 fl_plan *plan);

/* ---- batches: stream_batches.c ---- */

/* The next batch, for tp_iternext: NULL at the end, or with an error set. */
PyObject *fp_next_batch(PyObject *stream);

#endif
