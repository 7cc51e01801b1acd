/* Arguments that several functions of the module have, and the errors for invalid ones. */
#ifndef FASTLOOP_ARGUMENTS_H
#define FASTLOOP_ARGUMENTS_H

#include "limited_api.h"

#include "../core.h"

/* Sets a ValueError of this text, which has one %lld, and returns NULL. */
PyObject *fp_refuse(const char *format, long long value);
/* Sets an IndexError and returns NULL. */
PyObject *fp_refuse_index(int64_t index, int64_t num_rows);
/* Sets an OSError that names the column's file, which has become shorter, and returns NULL. */
PyObject *fp_refuse_cut_off(const fl_column *column);
/* Reads int32 or int64 indices from a buffer; the size of its items distinguishes the two.
 * Returns 1, or 0 with an error set. */
int fp_read_indices(const Py_buffer *buffer, fl_indices *indices, int64_t *count);

#endif
