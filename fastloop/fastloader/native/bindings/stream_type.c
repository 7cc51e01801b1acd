/* Stream: the batches of an epoch, from its opening to its end, also in forks. */
#include "stream_type.h"

#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <structmember.h>
#include <unistd.h>

#include "arguments.h"

/* ---- forks ---- */

/* of this process since it has loaded the module; a fork has one more than its parent */
static int num_forks;

/* Runs in the child of each fork. */
static void count_fork(void) { num_forks++; }

void fp_count_forks(void) { pthread_atfork(NULL, NULL, count_fork); }

int fp_is_forked(const stream_object *self) {
    if (self->num_forks == num_forks)
        return 0;
    PyErr_Format(PyExc_RuntimeError,
                 "process %d has begun this epoch of FastLoader, and %d is its fork: iterate over "
                 "the loader again in the fork",
                 self->pid, (int)getpid());
    return 1;
}

/* ---- its life ---- */

/* The pointer is cleared before the lock is released: no other thread can close the stream
 * again. In a fork the threads are missing and the mutex may be locked, so that the stream is
 * left to leak. */
void fp_close_stream(stream_object *self) {
    fl_stream *stream = self->stream;
    fl_column *columns = self->columns;
    self->stream = NULL;
    self->columns = NULL;
    if (!stream || self->num_forks != num_forks)
        return;
    Py_BEGIN_ALLOW_THREADS
    fl_close_stream(stream);
    Py_END_ALLOW_THREADS
    free(columns);
}

static int stream_traverse(PyObject *object, visitproc visit, void *arg) {
    stream_object *self = (stream_object *)object;
    Py_VISIT(Py_TYPE(object));
    /* Only these three can refer back to the loader, and so to the stream. The others are types
     * of this module and functions of torch. */
    Py_VISIT(self->assemble);
    Py_VISIT(self->pull);
    Py_VISIT(self->end);
    return 0;
}

static int stream_clear(PyObject *object) {
    stream_object *self = (stream_object *)object;
    fp_close_stream(self); /* first: its threads read the columns and the order */
    Py_CLEAR(self->column_tuple);
    Py_CLEAR(self->order);
    Py_CLEAR(self->pool);
    Py_CLEAR(self->wrap);
    Py_CLEAR(self->wrap_normally);
    Py_CLEAR(self->is_inference);
    Py_CLEAR(self->assemble);
    Py_CLEAR(self->pull);
    Py_CLEAR(self->end);
    PyBuffer_Release(&self->delivered);
    PyBuffer_Release(&self->events);
    return 0;
}

/* Runs in whichever thread drops the last reference. */
static void stream_free(PyObject *object) {
    /* Closing releases the interpreter's lock, in which a collection must not find a half-freed
     * object. */
    PyObject_GC_UnTrack(object);
    if (((stream_object *)object)->weak_references)
        PyObject_ClearWeakRefs(object);
    stream_clear(object);
    fp_free_object(object);
}

static PyObject *stream_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    stream_object *self = fp_new_object(type);
    if (!self)
        return NULL;
    self->num_forks = num_forks;
    self->pid = (int)getpid();
    fl_plan plan = {0};
    module_state *state = PyType_GetModuleState(type);
    if (!state || !fp_read_plan(self, args, kwargs, state, &plan)) {
        free(self->columns);
        self->columns = NULL;
        Py_DECREF(self);
        return NULL;
    }
    self->stream = fl_open_stream(&plan);
    if (!self->stream) {
        free(self->columns);
        self->columns = NULL;
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    /* From here on only the stream may read the order. */
    ((order_object *)self->order)->is_used = 1;
    return (PyObject *)self;
}

/* ---- methods ---- */

/* Called by `pull` inside next(), with the interpreter's lock. */
static PyObject *stream_feed(PyObject *object, PyObject *args) {
    stream_object *self = (stream_object *)object;
    PyObject *array, *sizes;
    Py_buffer index_buffer = {0}, size_buffer = {0};
    fl_indices indices, lengths = {0};
    int64_t count, num_sizes = 0, total = 0;
    if (!PyArg_ParseTuple(args, "OO", &array, &sizes) || fp_is_forked(self))
        return NULL;
    if (!self->stream || ((order_object *)self->order)->order.kind != FL_FED)
        return PyErr_Format(PyExc_ValueError, "feed: this epoch is closed, or has its order");
    int is_fed = !PyObject_GetBuffer(array, &index_buffer, PyBUF_CONTIG_RO) &&
                 fp_read_indices(&index_buffer, &indices, &count);
    if (is_fed && sizes != Py_None)
        is_fed = !PyObject_GetBuffer(sizes, &size_buffer, PyBUF_CONTIG_RO) &&
                 fp_read_indices(&size_buffer, &lengths, &num_sizes);
    /* The core cuts batches out of the indices by these sizes: together they must be exact. */
    for (int64_t k = 0; is_fed && k < num_sizes; k++)
        total += fl_index(lengths, k);
    if (is_fed && num_sizes && (lengths.width != 8 || total != count)) {
        fp_refuse("sizes: int64 numbers of %lld in all are allowed", count);
        is_fed = 0;
    }
    if (is_fed && !fl_feed(self->stream, indices, count, lengths.data, num_sizes)) {
        PyErr_NoMemory();
        is_fed = 0;
    }
    PyBuffer_Release(&index_buffer);
    PyBuffer_Release(&size_buffer);
    if (!is_fed)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *stream_finish(PyObject *object, PyObject *ignored) {
    (void)ignored;
    stream_object *self = (stream_object *)object;
    if (fp_is_forked(self))
        return NULL;
    if (self->stream)
        fl_finish_feed(self->stream);
    Py_RETURN_NONE;
}

static PyObject *stream_close(PyObject *object, PyObject *ignored) {
    (void)ignored;
    stream_object *self = (stream_object *)object;
    /* Another thread is inside next(), which must not lose its stream. It is told to end, and
     * closes it. */
    if (self->is_busy && self->num_forks == num_forks) {
        self->is_closing = 1;
        fl_stop_stream(self->stream);
    } else {
        fp_close_stream(self);
    }
    Py_RETURN_NONE;
}

static PyObject *stream_iter(PyObject *object) {
    Py_INCREF(object);
    return object;
}

static PyMethodDef stream_methods[] = {
    {"feed", stream_feed, METH_VARARGS, "Append indices, and the sizes of their batches or None."},
    {"finish", stream_finish, METH_NOARGS, "Say that no more indices follow."},
    {"close", stream_close, METH_NOARGS, "End the threads."},
    {NULL, NULL, 0, NULL},
};
static PyMemberDef stream_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(stream_object, weak_references), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot stream_slots[] = {
    {Py_tp_doc, "The batches of an epoch."},
    {Py_tp_members, stream_members},
    {Py_tp_new, stream_new},
    {Py_tp_dealloc, stream_free},
    {Py_tp_traverse, stream_traverse},
    {Py_tp_clear, stream_clear},
    {Py_tp_iter, stream_iter},
    {Py_tp_iternext, fp_next_batch},
    {Py_tp_methods, stream_methods},
    {0, NULL},
};
PyType_Spec fp_stream_spec = {"fastloop.fastloader._core.Stream", sizeof(stream_object), 0,
                              Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, stream_slots};
