/* Arguments that several of the module's functions have, and how they are refused. */
#ifndef FASTLOOP_ARGUMENTS_H
#define FASTLOOP_ARGUMENTS_H

#include "limited_api.h"

#include "../core.h"

/* NULL with a ValueError set, whose format has one %lld. */
PyObject *fp_refuse(const char *format, long long value);
PyObject *fp_refuse_index(int64_t index, int64_t num_rows);
/* NULL with an OSError set that names the column's file, which has become shorter. */
PyObject *fp_refuse_cut_off(const fl_column *column);
/* int32 or int64 indices of a buffer, by the size of its items; 0 with an error set. */
int fp_read_indices(const Py_buffer *buffer, fl_indices *indices, int64_t *count);

#endif
