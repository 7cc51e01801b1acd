/* Pool: memory of batches and of orders. Blocks that tensors hold may outlive the object: the
 * core's pool counts them. */
#include "types.h"

#include "arguments.h"
#include "capsules.h"

static void pool_free(PyObject *object) {
    if (((pool_object *)object)->pool)
        fl_release_pool(((pool_object *)object)->pool);
    fp_free_object(object);
}

static PyObject *pool_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"max_free_nbytes", NULL};
    long long nbytes;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "L", names, &nbytes))
        return NULL;
    pool_object *self = fp_new_object(type);
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

static PyObject *pool_take(PyObject *object, PyObject *args) {
    long long nbytes;
    if (!PyArg_ParseTuple(args, "L", &nbytes))
        return NULL;
    if (nbytes < 1)
        return fp_refuse("nbytes=%lld: allowed is 1 or more", nbytes);
    fl_block *block = fl_take_block(((pool_object *)object)->pool, (size_t)nbytes);
    if (!block)
        return PyErr_NoMemory();
    PyObject *capsule = fp_lend_bytes(block, nbytes);
    /* The capsule holds the block now; if it could not be made, this gives the block back. */
    fl_release_block(block);
    return capsule;
}

static PyMethodDef pool_methods[] = {
    {"free_nbytes", pool_free_nbytes, METH_NOARGS, "Bytes that nobody holds."},
    {"take", pool_take, METH_VARARGS, "A DLPack capsule of `nbytes` uninitialized bytes."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot pool_slots[] = {
    {Py_tp_doc, "Memory for batches and orders, reused once nobody holds it."},
    {Py_tp_new, pool_new},
    {Py_tp_dealloc, pool_free},
    {Py_tp_methods, pool_methods},
    {0, NULL},
};
PyType_Spec fp_pool_spec = {"fastloop.fastloader._core.Pool", sizeof(pool_object), 0,
                            Py_TPFLAGS_DEFAULT, pool_slots};
