/* Order: the indices of an epoch. It is read by its own read(), or by one stream, never by both:
 * fl_read_order() takes no lock. */
#include "types.h"

#include "arguments.h"

static void order_free(PyObject *object) {
    order_object *self = (order_object *)object;
    fl_close_order(&self->order);
    PyBuffer_Release(&self->array);
    for (int k = 0; k < FP_NUM_TABLES; k++)
        PyBuffer_Release(&self->tables[k]);
    Py_XDECREF(self->pool);
    fp_free_object(object);
}

/* Reads the four tables of a Feistel network: those of one width have equal lengths, and the
 * square has a place for every sample. Returns 0 with an error set. */
static int read_tables(order_object *self, PyObject *tables) {
    if (PyTuple_Size(tables) != FP_NUM_TABLES) {
        fp_refuse("tables: %lld, allowed are 4", PyTuple_Size(tables));
        return 0;
    }
    for (int k = 0; k < FP_NUM_TABLES; k++) {
        if (PyObject_GetBuffer(PyTuple_GetItem(tables, k), &self->tables[k], PyBUF_SIMPLE))
            return 0;
        self->order.tables[k] = self->tables[k].buf;
        if (self->tables[k].len != self->tables[k % 2].len || self->tables[k].len < 4) {
            fp_refuse("tables: %lld bytes, others than before", self->tables[k].len);
            return 0;
        }
    }
    self->order.num_columns = (uint32_t)(self->tables[0].len / 4);
    self->order.num_rows = (uint32_t)(self->tables[1].len / 4);
    if ((int64_t)self->order.num_rows * self->order.num_columns < self->order.num_samples) {
        fp_refuse("tables: too short for %lld samples", self->order.num_samples);
        return 0;
    }
    return 1;
}

/* Reads the arguments of the order's kind. Returns 0 with an error set. */
static int read_order(order_object *self, PyObject *array, PyObject *tables) {
    fl_order *order = &self->order;
    if (order->kind == FL_ARRAY) {
        if (PyObject_GetBuffer(array, &self->array, PyBUF_CONTIG_RO) ||
            !fp_read_indices(&self->array, &order->array, &order->length))
            return 0;
    } else if (order->kind == FL_FEISTEL && !read_tables(self, tables)) {
        return 0;
    }
    /* From this number of samples on, torch.randperm draws 64 bits for each index, and its order
     * is another. */
    if (order->kind == FL_RANDPERM && order->num_samples >= UINT32_MAX / 20) {
        fp_refuse("num_samples=%lld: allowed are fewer than 214748364", order->num_samples);
        return 0;
    }
    return 1;
}

static PyObject *order_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"kind", "num_samples", "rank", "world_size", "seed", "array", "tables",
                            "pool", NULL};
    order_object *self = fp_new_object(type);
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
    /* Arguments are borrowed references: the object takes its own before anything can fail. */
    Py_XINCREF(self->pool);
    fl_order *order = &self->order;
    if (is_read) {
        order->kind = (fl_order_kind)kind;
        order->num_samples = num_samples, order->rank = rank, order->world_size = world_size;
        if (num_samples < 0 || rank < 0 || world_size <= rank) {
            fp_refuse("rank=%lld: allowed are 0 to world_size - 1", rank);
            is_read = 0;
        }
    }
    is_read = is_read && (order->kind != FL_FEISTEL || tables) && read_order(self, array, tables);
    /* Every rank has equally many indices, rounded up, as a DistributedSampler deals them. */
    if (is_read && order->kind != FL_ARRAY && order->kind != FL_FED)
        order->length = (num_samples + world_size - 1) / world_size;
    fl_pool *pool = is_read && self->pool ? ((pool_object *)self->pool)->pool : NULL;
    order->seed = (uint32_t)seed;
    if (is_read && !fl_open_order(order, pool)) {
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
        return fp_refuse("start=%lld: outside of the order, or it is read by a stream", start);
    }
    fl_indices indices = count ? fl_read_order(&self->order, start, count, out.buf)
                               : (fl_indices){out.buf, 8};
    /* An array, or the permutation of one rank, is not in `out` but in the order's own memory. */
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
PyType_Spec fp_order_spec = {"fastloop.fastloader._core.Order", sizeof(order_object), 0,
                             Py_TPFLAGS_DEFAULT, order_slots};
