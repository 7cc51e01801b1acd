/* The door to Python: columns, orders, pools of memory and streams as objects, by the limited API.
 *
 * Whatever the core reads is held by these objects as buffers, and checked against their lengths.
 */
#if !defined(Py_GIL_DISABLED) && !defined(Py_LIMITED_API)
#define Py_LIMITED_API 0x030B0000
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <structmember.h>
#include <unistd.h>

#include "core.h"
#include "dlpack.h"

enum { MAX_DIMENSIONS = 16, MAX_TABLES = 4, WAIT_MS = 50 };

static int num_forks; /* of this process, since it has loaded the module */

static void count_fork(void) { num_forks++; }

typedef struct {
    PyTypeObject *column, *order, *pool, *stream;
} module_state;

static PyObject *refuse(const char *format, long long value) {
    return PyErr_Format(PyExc_ValueError, format, value);
}

static PyObject *refuse_index(int64_t index, int64_t num_rows) {
    return PyErr_Format(PyExc_IndexError, "index %lld is out of bounds for %lld samples",
                        (long long)index, (long long)num_rows);
}

/* int32 or int64 indices of a buffer, by the size of its items; 0 with an error set. */
static int read_indices(const Py_buffer *buffer, fl_indices *indices, int64_t *count) {
    if (buffer->itemsize != 4 && buffer->itemsize != 8) {
        refuse("indices of %lld bytes: allowed are int32 and int64", buffer->itemsize);
        return 0;
    }
    *indices = (fl_indices){buffer->buf, (int)buffer->itemsize};
    *count = buffer->len / buffer->itemsize;
    return 1;
}

static void free_object(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static void *new_object(PyTypeObject *type) {
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    return allocate(type, 0); /* zeroed */
}

/* ---- Column ---- */

typedef struct {
    PyObject_HEAD
    fl_column column;
    Py_buffer rows, factor, offset;
    dl_type type;
    int num_dimensions;  /* of a sample */
    int64_t shape[MAX_DIMENSIONS], strides[MAX_DIMENSIONS];
} column_object;

static void column_free(PyObject *object) {
    column_object *self = (column_object *)object;
    fl_release_conversion(&self->column);
    PyBuffer_Release(&self->rows);
    PyBuffer_Release(&self->factor);
    PyBuffer_Release(&self->offset);
    free_object(object);
}

static int read_numbers(PyObject *tuple, int64_t *numbers) {
    Py_ssize_t count = PyTuple_Size(tuple);
    if (count > MAX_DIMENSIONS) {
        refuse("samples of %lld dimensions: allowed are 16", count);
        return -1;
    }
    for (Py_ssize_t k = 0; k < count; k++)
        numbers[k] = PyLong_AsLongLong(PyTuple_GetItem(tuple, k));
    return PyErr_Occurred() ? -1 : (int)count;
}

/* Every row lies within the buffer, and the conversion's numbers fit each other. */
static int check_column(const column_object *self, int64_t offset) {
    const fl_column *column = &self->column;
    int64_t last = column->positions ? (int64_t)column->positions - 1 : column->num_rows - 1;
    int64_t needed = column->num_rows ? offset + last * column->stride + column->source_nbytes : 0;
    if (column->num_rows < 0 || offset < 0 || column->stride < 0 || needed > self->rows.len) {
        refuse("rows end at byte %lld, behind their buffer", needed);
        return 0;
    }
    int64_t items = column->channels * column->pixels;
    int is_converted = column->source != FL_BYTES, num = (int)column->num_factors;
    int fits = column->num_factors == 0 || num == 1 || column->num_factors == column->channels;
    fits = fits && self->factor.len >= 4 * column->num_factors;
    fits = fits && self->offset.len >= 4 * column->num_factors;
    if (is_converted ? !fits || items < 0 : column->source_nbytes != column->nbytes) {
        refuse("a conversion of %lld items does not fit its rows", items);
        return 0;
    }
    return 1;
}

static PyObject *column_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"rows", "num_rows", "stride", "nbytes", "begin", "positions", "seed",
                            "types", "layout", "factor", "offset", "dtype", "shape", "strides",
                            NULL};
    column_object *self = new_object(type);
    if (!self)
        return NULL;
    fl_column *column = &self->column;
    long long num_rows, stride, source_nbytes, nbytes, begin, channels, pixels, num_factors;
    int source, target, code, bits;
    PyObject *shape, *strides;
    int is_read = PyArg_ParseTupleAndKeywords(
        args, kwargs, "y*LL(LL)LKK(ii)(LLiiL)y*y*(ii)O!O!", names, &self->rows, &num_rows, &stride,
        &source_nbytes, &nbytes, &begin, &column->positions, &column->seed, &source, &target,
        &channels, &pixels, &column->source_hwc, &column->target_hwc, &num_factors, &self->factor,
        &self->offset, &code, &bits, &PyTuple_Type, &shape, &PyTuple_Type, &strides);
    if (is_read) {
        column->base = (const char *)self->rows.buf + begin;
        column->num_rows = num_rows, column->stride = stride;
        column->source_nbytes = source_nbytes, column->nbytes = nbytes;
        column->source = (fl_type)source, column->target = (fl_type)target;
        column->channels = channels, column->pixels = pixels, column->num_factors = num_factors;
        column->factor = self->factor.buf, column->offset = self->offset.buf;
        self->type = (dl_type){(uint8_t)code, (uint8_t)bits, 1};
        self->num_dimensions = read_numbers(shape, self->shape);
        is_read = self->num_dimensions >= 0 && read_numbers(strides, self->strides) >= 0 &&
                  check_column(self, begin);
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
static PyType_Spec column_spec = {"fastloop.fastloader._core.Column", sizeof(column_object), 0,
                                  Py_TPFLAGS_DEFAULT, column_slots};

/* A new array of the columns in a tuple, all of one length; NULL with an error set. */
static fl_column *read_columns(PyObject *tuple, PyTypeObject *type) {
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
                refuse("columns of one length are allowed, got %lld rows", columns[k].num_rows);
        }
    }
    if (!count)
        refuse("columns: %lld, allowed is 1 or more", 0);
    if (PyErr_Occurred()) {
        free(columns);
        return NULL;
    }
    return columns;
}

/* ---- Pool ---- */

typedef struct {
    PyObject_HEAD
    fl_pool *pool;
} pool_object;

static void pool_free(PyObject *object) {
    if (((pool_object *)object)->pool)
        fl_release_pool(((pool_object *)object)->pool);
    free_object(object);
}

static PyObject *pool_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"max_free_nbytes", NULL};
    long long nbytes;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "L", names, &nbytes))
        return NULL;
    pool_object *self = new_object(type);
    if (self && !(self->pool = fl_open_pool((size_t)nbytes))) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static PyObject *pool_free_nbytes(PyObject *object, PyObject *ignored) {
    (void)ignored;
    return PyLong_FromSize_t(fl_free_nbytes(((pool_object *)object)->pool));
}

static PyObject *lend_bytes(fl_block *block, int64_t nbytes);

static PyObject *pool_take(PyObject *object, PyObject *args) {
    long long nbytes;
    if (!PyArg_ParseTuple(args, "L", &nbytes))
        return NULL;
    if (nbytes < 1)
        return refuse("nbytes=%lld: allowed is 1 or more", nbytes);
    fl_block *block = fl_take_block(((pool_object *)object)->pool, (size_t)nbytes);
    if (!block)
        return PyErr_NoMemory();
    PyObject *capsule = lend_bytes(block, nbytes);
    fl_release_block(block);
    return capsule;
}

static PyMethodDef pool_methods[] = {
    {"free_nbytes", pool_free_nbytes, METH_NOARGS, "Bytes that nobody holds."},
    {"take", pool_take, METH_VARARGS, "A DLPack capsule of `nbytes` bytes that nobody has set."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot pool_slots[] = {
    {Py_tp_doc, "Memory of batches, taken again once nobody holds it."},
    {Py_tp_new, pool_new},
    {Py_tp_dealloc, pool_free},
    {Py_tp_methods, pool_methods},
    {0, NULL},
};
static PyType_Spec pool_spec = {"fastloop.fastloader._core.Pool", sizeof(pool_object), 0,
                                Py_TPFLAGS_DEFAULT, pool_slots};

/* ---- Order ---- */

typedef struct {
    PyObject_HEAD
    fl_order order;
    Py_buffer array, tables[MAX_TABLES];
    PyObject *pool; /* of the order's memory, or NULL */
    int is_used;    /* by a stream */
} order_object;

static void order_free(PyObject *object) {
    order_object *self = (order_object *)object;
    fl_close_order(&self->order);
    PyBuffer_Release(&self->array);
    for (int k = 0; k < MAX_TABLES; k++)
        PyBuffer_Release(&self->tables[k]);
    Py_XDECREF(self->pool);
    free_object(object);
}

static int read_tables(order_object *self, PyObject *tables) {
    if (PyTuple_Size(tables) != MAX_TABLES) {
        refuse("tables: %lld, allowed are 4", PyTuple_Size(tables));
        return 0;
    }
    for (int k = 0; k < MAX_TABLES; k++) {
        if (PyObject_GetBuffer(PyTuple_GetItem(tables, k), &self->tables[k], PyBUF_SIMPLE))
            return 0;
        self->order.tables[k] = self->tables[k].buf;
        if (self->tables[k].len != self->tables[k % 2].len || self->tables[k].len < 4) {
            refuse("tables: %lld bytes, others than before", self->tables[k].len);
            return 0;
        }
    }
    self->order.num_columns = (uint32_t)(self->tables[0].len / 4);
    self->order.num_rows = (uint32_t)(self->tables[1].len / 4);
    if ((int64_t)self->order.num_rows * self->order.num_columns < self->order.num_samples) {
        refuse("tables: too short for %lld samples", self->order.num_samples);
        return 0;
    }
    return 1;
}

static int read_order(order_object *self, PyObject *array, PyObject *tables) {
    fl_order *order = &self->order;
    if (order->kind == FL_ARRAY) {
        if (PyObject_GetBuffer(array, &self->array, PyBUF_CONTIG_RO) ||
            !read_indices(&self->array, &order->array, &order->length))
            return 0;
    } else if (order->kind == FL_FEISTEL && !read_tables(self, tables)) {
        return 0;
    }
    /* torch draws twice as many bits for more */
    if (order->kind == FL_RANDPERM && order->num_samples >= UINT32_MAX / 20) {
        refuse("num_samples=%lld: allowed are fewer than 214748364", order->num_samples);
        return 0;
    }
    return 1;
}

static PyObject *order_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"kind", "num_samples", "rank", "world_size", "seed", "array", "tables",
                            "pool", NULL};
    order_object *self = new_object(type);
    if (!self)
        return NULL;
    int kind;
    long long num_samples, rank = 0, world_size = 1;
    unsigned long long seed = 0;
    module_state *state = PyType_GetModuleState(type);
    PyObject *array = Py_None, *tables = NULL;
    int is_read = state && PyArg_ParseTupleAndKeywords(
        args, kwargs, "iL|LLKOO!O!", names, &kind, &num_samples, &rank, &world_size, &seed, &array,
        &PyTuple_Type, &tables, state->pool, &self->pool);
    Py_XINCREF(self->pool);
    fl_order *order = &self->order;
    if (is_read) {
        order->kind = (fl_order_kind)kind;
        order->num_samples = num_samples, order->rank = rank, order->world_size = world_size;
        if (num_samples < 0 || rank < 0 || world_size <= rank) {
            refuse("rank=%lld: allowed are 0 to world_size - 1", rank);
            is_read = 0;
        }
    }
    is_read = is_read && (order->kind != FL_FEISTEL || tables) && read_order(self, array, tables);
    if (is_read && order->kind != FL_ARRAY && order->kind != FL_FED)
        order->length = (num_samples + world_size - 1) / world_size;
    fl_pool *pool = is_read && self->pool ? ((pool_object *)self->pool)->pool : NULL;
    if (is_read && !fl_open_order(order, (uint32_t)seed, pool)) {
        PyErr_NoMemory();
        is_read = 0;
    }
    if (!is_read) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static PyObject *order_read(PyObject *object, PyObject *args) {
    order_object *self = (order_object *)object;
    Py_buffer out;
    long long start;
    if (!PyArg_ParseTuple(args, "Lw*", &start, &out))
        return NULL;
    int64_t count = out.len / 8;
    if (self->is_used || start < 0 || start + count > self->order.length) {
        PyBuffer_Release(&out);
        return refuse("start=%lld: outside of the order, or it is read by a stream", start);
    }
    fl_indices indices = count ? fl_read_order(&self->order, start, count, out.buf)
                               : (fl_indices){out.buf, 8};
    if (indices.data != out.buf)
        for (int64_t k = 0; k < count; k++)
            ((int64_t *)out.buf)[k] = fl_index(indices, k);
    PyBuffer_Release(&out);
    Py_RETURN_NONE;
}

static PyMethodDef order_methods[] = {
    {"read", order_read, METH_VARARGS, "Write the indices from `start` on to an int64 array."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot order_slots[] = {
    {Py_tp_doc, "The indices of an epoch."},
    {Py_tp_new, order_new},
    {Py_tp_dealloc, order_free},
    {Py_tp_methods, order_methods},
    {0, NULL},
};
static PyType_Spec order_spec = {"fastloop.fastloader._core.Order", sizeof(order_object), 0,
                                 Py_TPFLAGS_DEFAULT, order_slots};

/* ---- tensors ---- */

typedef struct {
    dl_managed_tensor managed;
    fl_block *block;
    int64_t numbers[];
} lent_tensor;

static void take_back(dl_managed_tensor *managed) {
    lent_tensor *lent = managed->context;
    fl_release_block(lent->block);
    free(lent);
}

static void capsule_free(PyObject *capsule) {
    if (PyCapsule_IsValid(capsule, "dltensor")) { /* else the tensor has it */
        dl_managed_tensor *managed = PyCapsule_GetPointer(capsule, "dltensor");
        managed->deleter(managed);
    }
}

/* A tensor of a block's memory, whose `count` sizes and strides are to be set. */
static lent_tensor *new_lent(fl_block *block, char *memory, dl_type type, int count) {
    lent_tensor *lent = malloc(sizeof *lent + (size_t)(2 * count) * sizeof *lent->numbers);
    if (!lent) {
        PyErr_NoMemory();
        return NULL;
    }
    int64_t *shape = lent->numbers, *strides = shape + count;
    lent->managed =
        (dl_managed_tensor){{memory, {1, 0}, count, type, shape, strides, 0}, lent, take_back};
    lent->block = block;
    return lent;
}

static PyObject *lend(lent_tensor *lent) {
    PyObject *capsule = PyCapsule_New(&lent->managed, "dltensor", capsule_free);
    if (!capsule) {
        free(lent);
        return NULL;
    }
    fl_hold_block(lent->block);
    return capsule;
}

static PyObject *lend_rows(const column_object *column, const fl_batch *batch, char *memory) {
    int count = column->num_dimensions + 1;
    lent_tensor *lent = new_lent(batch->block, memory, column->type, count);
    if (!lent)
        return NULL;
    int64_t *shape = lent->managed.tensor.shape, *strides = lent->managed.tensor.strides;
    shape[0] = batch->num_rows;
    strides[0] = column->column.nbytes / (column->type.bits / 8);
    for (int k = 1; k < count; k++) {
        shape[k] = column->shape[k - 1];
        strides[k] = column->strides[k - 1];
    }
    return lend(lent);
}

static PyObject *lend_bytes(fl_block *block, int64_t nbytes) {
    enum { UNSIGNED = 1 };
    lent_tensor *lent = new_lent(block, block->memory, (dl_type){UNSIGNED, 8, 1}, 1);
    if (!lent)
        return NULL;
    lent->managed.tensor.shape[0] = nbytes;
    lent->managed.tensor.strides[0] = 1;
    return lend(lent);
}

/* A tuple of wrap(capsule) of each column. */
static PyObject *lend_columns(PyObject *columns, PyObject *wrap, const fl_batch *batch) {
    Py_ssize_t count = PyTuple_Size(columns);
    PyObject *tensors = PyTuple_New(count);
    char *memory = batch->memory;
    for (Py_ssize_t k = 0; tensors && k < count; k++) {
        const column_object *column = (column_object *)PyTuple_GetItem(columns, k);
        PyObject *capsule = lend_rows(column, batch, memory);
        PyObject *tensor = capsule ? PyObject_CallFunctionObjArgs(wrap, capsule, NULL) : NULL;
        Py_XDECREF(capsule);
        if (tensor)
            PyTuple_SetItem(tensors, k, tensor);
        else
            Py_CLEAR(tensors);
        memory += fl_align((size_t)(batch->num_rows * column->column.nbytes));
    }
    return tensors;
}

/* ---- Stream ---- */

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

/* In a fork, which has none of the threads, the stream is left as it is. */
static void close_stream(stream_object *self) {
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
    Py_VISIT(self->assemble);
    Py_VISIT(self->pull);
    Py_VISIT(self->end);
    return 0;
}

static int stream_clear(PyObject *object) {
    stream_object *self = (stream_object *)object;
    close_stream(self); /* before what its threads read goes */
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

static void stream_free(PyObject *object) {
    PyObject_GC_UnTrack(object);
    if (((stream_object *)object)->weak_references)
        PyObject_ClearWeakRefs(object);
    stream_clear(object);
    free_object(object);
}

static int refuse_plan(const char *format, long long value) {
    refuse(format, value);
    return 0;
}

static int read_plan(stream_object *self, PyObject *args, PyObject *kwargs, module_state *state,
                     fl_plan *plan) {
    static char *names[] = {"columns", "order", "pool", "calls", "delivered", "start", "batch_size",
                            "drop_last", "num_threads", "block_nbytes", "max_blocks", "events", NULL};
    long long start, batch_size, block_nbytes;
    PyObject **owned[] = {&self->column_tuple, &self->order, &self->pool, &self->wrap,
                          &self->wrap_normally, &self->is_inference, &self->assemble, &self->pull,
                          &self->end};
    int is_read = PyArg_ParseTupleAndKeywords(
        args, kwargs, "O!O!O!(OOOOOO)w*LLpiLi|w*", names, &PyTuple_Type, &self->column_tuple,
        state->order, &self->order, state->pool, &self->pool, &self->wrap, &self->wrap_normally,
        &self->is_inference, &self->assemble, &self->pull, &self->end, &self->delivered, &start,
        &batch_size, &plan->drop_last, &plan->num_threads, &block_nbytes, &plan->max_blocks,
        &self->events);
    for (size_t k = 0; k < sizeof owned / sizeof *owned; k++)
        if (is_read)
            Py_INCREF(*owned[k]);
        else
            *owned[k] = NULL; /* not owned */
    if (!is_read)
        return 0;
    if (self->delivered.len != sizeof(int64_t))
        return refuse_plan("delivered: %lld bytes, allowed is an int64", self->delivered.len);
    plan->events = self->events.buf;
    plan->max_events = self->events.len / (Py_ssize_t)sizeof *plan->events;
    order_object *order = (order_object *)self->order;
    plan->order = &order->order;
    plan->pool = ((pool_object *)self->pool)->pool;
    plan->start = start, plan->batch_size = batch_size, plan->block_nbytes = (size_t)block_nbytes;
    if (order->is_used || start < 0 || (order->order.kind != FL_FED && start > order->order.length))
        return refuse_plan("start=%lld: outside of the order, or it is read by a stream", start);
    if (batch_size < 0 || (!batch_size && order->order.kind != FL_FED) || block_nbytes < 0)
        return refuse_plan("batch_size=%lld: allowed is 1 or more, and 0 where sizes are fed", batch_size);
    if (plan->num_threads < 0 || plan->max_blocks < 1)
        return refuse_plan("max_blocks=%lld: allowed is 1 or more", plan->max_blocks);
    self->columns = read_columns(self->column_tuple, state->column);
    plan->columns = self->columns;
    plan->num_columns = (int)PyTuple_Size(self->column_tuple);
    return self->columns != NULL;
}

static PyObject *stream_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    stream_object *self = new_object(type);
    if (!self)
        return NULL;
    self->num_forks = num_forks;
    self->pid = (int)getpid();
    fl_plan plan = {0};
    module_state *state = PyType_GetModuleState(type);
    if (!state || !read_plan(self, args, kwargs, state, &plan)) {
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
    ((order_object *)self->order)->is_used = 1;
    return (PyObject *)self;
}

static int is_forked(const stream_object *self) {
    if (self->num_forks == num_forks)
        return 0;
    PyErr_Format(PyExc_RuntimeError,
                 "process %d has begun this epoch of FastLoader, and %d is its fork: iterate over "
                 "the loader anew in the fork",
                 self->pid, (int)getpid());
    return 1;
}

/* Wait or feed; the status afterwards, or -1 with an error set. */
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
    return self->is_closing ? FL_END : status;
}

/* Close the stream and call `end`, which may raise: NULL, with or without an error. */
static PyObject *end_stream(stream_object *self) {
    PyObject *end = self->end;
    Py_INCREF(end);
    close_stream(self);
    PyObject *result = PyObject_CallNoArgs(end);
    Py_XDECREF(result);
    Py_DECREF(end);
    return NULL;
}

static PyObject *lend_batch(stream_object *self, const fl_batch *batch) {
    PyObject *is_inference = PyObject_CallNoArgs(self->is_inference);
    if (!is_inference)
        return NULL;
    PyObject *wrap = is_inference == Py_True ? self->wrap_normally : self->wrap;
    Py_DECREF(is_inference);
    PyObject *tensors = lend_columns(self->column_tuple, wrap, batch), *result = NULL;
    if (!tensors)
        return NULL;
    ++*(int64_t *)self->delivered.buf;
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

static PyObject *stream_next(PyObject *object) {
    stream_object *self = (stream_object *)object;
    fl_batch batch;
    if (is_forked(self))
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
    if (status == FL_INVALID_INDEX)
        refuse_index(batch.invalid_index, self->columns[0].num_rows);
    if (status == FL_NO_MEMORY)
        PyErr_NoMemory();
    close_stream(self);
    return NULL;
}

static PyObject *stream_feed(PyObject *object, PyObject *args) {
    stream_object *self = (stream_object *)object;
    PyObject *array, *sizes;
    Py_buffer index_buffer = {0}, size_buffer = {0};
    fl_indices indices, lengths = {0};
    int64_t count, num_sizes = 0, total = 0;
    if (!PyArg_ParseTuple(args, "OO", &array, &sizes) || is_forked(self))
        return NULL;
    if (!self->stream || ((order_object *)self->order)->order.kind != FL_FED)
        return PyErr_Format(PyExc_ValueError, "feed: this epoch is closed, or has its order");
    int is_fed = !PyObject_GetBuffer(array, &index_buffer, PyBUF_CONTIG_RO) &&
                 read_indices(&index_buffer, &indices, &count);
    if (is_fed && sizes != Py_None)
        is_fed = !PyObject_GetBuffer(sizes, &size_buffer, PyBUF_CONTIG_RO) &&
                 read_indices(&size_buffer, &lengths, &num_sizes);
    for (int64_t k = 0; is_fed && k < num_sizes; k++)
        total += fl_index(lengths, k);
    if (is_fed && num_sizes && (lengths.width != 8 || total != count)) {
        refuse("sizes: int64 numbers of %lld in all are allowed", count);
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
    if (is_forked(self))
        return NULL;
    if (self->stream)
        fl_finish_feed(self->stream);
    Py_RETURN_NONE;
}

static PyObject *stream_close(PyObject *object, PyObject *ignored) {
    (void)ignored;
    stream_object *self = (stream_object *)object;
    if (self->is_busy && self->num_forks == num_forks) { /* next() closes it, which ends now */
        self->is_closing = 1;
        fl_stop_stream(self->stream);
    } else {
        close_stream(self);
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
    {Py_tp_iternext, stream_next},
    {Py_tp_methods, stream_methods},
    {0, NULL},
};
static PyType_Spec stream_spec = {"fastloop.fastloader._core.Stream", sizeof(stream_object), 0,
                                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, stream_slots};

/* ---- gather_into ---- */

static PyObject *gather_checked(const fl_column *columns, Py_buffer *outs, Py_ssize_t num_columns,
                                const Py_buffer *array, int num_threads) {
    fl_gather gather = {.columns = columns, .num_columns = (int)num_columns};
    if (!read_indices(array, &gather.indices, &gather.count))
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
            return refuse("outs: %lld bytes are fewer than the rows have", outs[k].len);
        }
    }
    Py_BEGIN_ALLOW_THREADS
    invalid = fl_find_invalid(gather.indices, gather.count, num_rows);
    if (invalid < 0)
        fl_gather_rows(&gather, num_threads);
    Py_END_ALLOW_THREADS
    free(memory);
    if (invalid >= 0)
        return refuse_index(fl_index(gather.indices, invalid), num_rows);
    Py_RETURN_NONE;
}

static PyObject *gather_into(PyObject *module, PyObject *args) {
    module_state *state = PyModule_GetState(module);
    PyObject *tuple, *targets, *result = NULL;
    Py_buffer array;
    int num_threads;
    if (!PyArg_ParseTuple(args, "O!y*O!i", &PyTuple_Type, &tuple, &array, &PyTuple_Type, &targets,
                          &num_threads))
        return NULL;
    Py_ssize_t count = PyTuple_Size(tuple), opened = 0;
    fl_column *columns = read_columns(tuple, state->column);
    Py_buffer *outs = calloc((size_t)count + 1, sizeof *outs);
    if (columns && outs && PyTuple_Size(targets) == count) {
        while (opened < count &&
               !PyObject_GetBuffer(PyTuple_GetItem(targets, opened), &outs[opened],
                                   PyBUF_WRITABLE))
            opened++;
        if (opened == count)
            result = gather_checked(columns, outs, count, &array, num_threads);
    } else if (columns) {
        refuse("outs: %lld, allowed is one for each column", PyTuple_Size(targets));
    }
    while (opened)
        PyBuffer_Release(&outs[--opened]);
    free(outs);
    free(columns);
    PyBuffer_Release(&array);
    return result;
}

/* ---- the module ---- */

static int add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **type) {
    *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    return *type && !PyModule_AddType(module, *type);
}

static int module_exec(PyObject *module) {
    module_state *state = PyModule_GetState(module);
    pthread_atfork(NULL, NULL, count_fork);
    return add_type(module, &column_spec, &state->column) &&
                   add_type(module, &order_spec, &state->order) &&
                   add_type(module, &pool_spec, &state->pool) &&
                   add_type(module, &stream_spec, &state->stream)
               ? 0
               : -1;
}

static int module_clear(PyObject *module) {
    module_state *state = PyModule_GetState(module);
    Py_CLEAR(state->column);
    Py_CLEAR(state->order);
    Py_CLEAR(state->pool);
    Py_CLEAR(state->stream);
    return 0;
}

static PyMethodDef functions[] = {
    {"gather_into", gather_into, METH_VARARGS,
     "gather_into(columns, indices, outs, num_threads): write rows to given memory."},
    {NULL, NULL, 0, NULL},
};
static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, module_exec}, {0, NULL}};
static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_core",
    .m_doc = "The native core of FastLoader.",
    .m_size = sizeof(module_state),
    .m_methods = functions,
    .m_slots = module_slots,
    .m_clear = module_clear,
};

PyMODINIT_FUNC PyInit__core(void) { return PyModuleDef_Init(&definition); }
