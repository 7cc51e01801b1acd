/* The structs of the module's Python types, and the functions that their files share.
 *
 * All memory that the core reads is held by these objects as buffers, and checked against their
 * lengths.
 */
#ifndef FASTLOOP_TYPES_H
#define FASTLOOP_TYPES_H

#include "limited_api.h"

#include "../core.h"
#include "dlpack.h"

enum { FP_MAX_DIMENSIONS = 16, FP_NUM_TABLES = 4 };

typedef struct {
    PyTypeObject *column, *order, *pool, *stream;
} module_state;

static inline void *fp_new_object(PyTypeObject *type) {
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    return allocate(type, 0); /* zeroed */
}

/* An object of a heap type holds a reference to its type (since Python 3.8). */
static inline void fp_free_object(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

/* ---- Column: column_type.c ---- */

typedef struct {
    PyObject_HEAD
    fl_column column;
    PyObject *path;     /* bytes: the mapped file's path, or NULL */
    Py_buffer rows, factor, offset;
    dl_type type;
    int num_dimensions; /* dimensions of a sample */
    int64_t shape[FP_MAX_DIMENSIONS], strides[FP_MAX_DIMENSIONS];
} column_object;

extern PyType_Spec fp_column_spec;
/* Returns a new array of the columns in a tuple, all of one length, which the caller frees; NULL
 * with an error set. The tuple must live as long as the array. */
fl_column *fp_read_columns(PyObject *tuple, PyTypeObject *type);

/* ---- Pool: pool_type.c ---- */

typedef struct {
    PyObject_HEAD
    fl_pool *pool;
} pool_object;

extern PyType_Spec fp_pool_spec;

/* ---- Order: order_type.c ---- */

typedef struct {
    PyObject_HEAD
    fl_order order;
    Py_buffer array, tables[FP_NUM_TABLES];
    PyObject *pool; /* the pool of the order's memory, or NULL */
    int is_used;    /* 1 once a stream has used it */
} order_object;

extern PyType_Spec fp_order_spec;

/* ---- Stream: stream_type.c ---- */

extern PyType_Spec fp_stream_spec;
/* Makes streams notice that they are in a fork; called once, when the module is loaded. */
void fp_count_forks(void);

/* ---- a function: gather_into.c ---- */

PyObject *fp_gather_into(PyObject *module, PyObject *args);

#endif
