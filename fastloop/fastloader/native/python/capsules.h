/* Memory of blocks as DLPack capsules, of which other libraries make tensors without a copy. */
#ifndef FASTLOOP_CAPSULES_H
#define FASTLOOP_CAPSULES_H

#include "types.h"

/* A capsule of a block's first bytes, which holds the block; NULL with an error set. */
PyObject *fp_lend_bytes(fl_block *block, int64_t nbytes);
/* A tuple of wrap(capsule) of each column's rows; NULL with an error set. */
PyObject *fp_lend_columns(PyObject *columns, PyObject *wrap, const fl_batch *batch);

#endif
