/* DLPack capsules: whoever frees a tensor, in any thread, gives its block back.
 *
 * A capsule named "dltensor" owns its tensor. A consumer such as torch.from_dlpack renames it to
 * "used_dltensor" and calls the deleter itself, once, perhaps without the interpreter's lock.
 */
#include "capsules.h"

#include <stdlib.h>

/* One allocation for a lent tensor: the structure that DLPack reads, the block that it holds, and
 * its shape and strides. */
typedef struct {
    dl_managed_tensor managed;
    fl_block *block;
    int64_t numbers[];
} lent_tensor;

/* DLPack's deleter. It touches no Python object: the thread may not hold the interpreter's lock. */
static void take_back(dl_managed_tensor *managed) {
    lent_tensor *lent = managed->context;
    fl_release_block(lent->block);
    free(lent);
}

/* Frees the tensor of a capsule that nobody has taken it from. */
static void capsule_free(PyObject *capsule) {
    if (PyCapsule_IsValid(capsule, "dltensor")) { /* another name: a tensor owns it now */
        dl_managed_tensor *managed = PyCapsule_GetPointer(capsule, "dltensor");
        managed->deleter(managed);
    }
}

/* Returns a tensor of a block's memory, without its `count` sizes and strides; NULL with an
 * error set. It does not hold the block yet. */
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

/* Returns a capsule of the tensor, which holds the block from now on; NULL with an error set. */
static PyObject *lend(lent_tensor *lent) {
    PyObject *capsule = PyCapsule_New(&lent->managed, "dltensor", capsule_free);
    if (!capsule) {
        free(lent);
        return NULL;
    }
    fl_hold_block(lent->block);
    return capsule;
}

/* Returns a capsule of one column's rows in a batch; NULL with an error set. */
static PyObject *lend_rows(const column_object *column, const fl_batch *batch, char *memory) {
    int count = column->num_dimensions + 1;
    lent_tensor *lent = new_lent(batch->block, memory, column->type, count);
    if (!lent)
        return NULL;
    int64_t *shape = lent->managed.tensor.shape, *strides = lent->managed.tensor.strides;
    shape[0] = batch->num_rows;
    /* DLPack counts strides in items. Rows follow each other without a gap. */
    strides[0] = column->column.nbytes / (column->type.bits / 8);
    for (int k = 1; k < count; k++) {
        shape[k] = column->shape[k - 1];
        strides[k] = column->strides[k - 1];
    }
    return lend(lent);
}

PyObject *fp_lend_bytes(fl_block *block, int64_t nbytes) {
    enum { UNSIGNED = 1 };
    lent_tensor *lent = new_lent(block, block->memory, (dl_type){UNSIGNED, 8, 1}, 1);
    if (!lent)
        return NULL;
    lent->managed.tensor.shape[0] = nbytes;
    lent->managed.tensor.strides[0] = 1;
    return lend(lent);
}

PyObject *fp_lend_columns(PyObject *columns, PyObject *wrap, const fl_batch *batch) {
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
        /* take_memory() in stream_blocks.c has aligned each column. */
        memory += fl_align((size_t)(batch->num_rows * column->column.nbytes));
    }
    return tensors;
}
