/* Memory of blocks as DLPack capsules, from which other libraries make tensors without a copy. */
#ifndef FASTLOOP_CAPSULES_H
#define FASTLOOP_CAPSULES_H

#include "types.h"

/* Returns a capsule of a block's first bytes, which holds the block; NULL with an error set. */
PyObject *fp_lend_bytes(fl_block *block, int64_t nbytes);
/* Returns the tuple of wrap(capsule) for each column's rows; NULL with an error set. */
PyObject *fp_lend_columns(PyObject *columns, PyObject *wrap, const fl_batch *batch);

#endif
