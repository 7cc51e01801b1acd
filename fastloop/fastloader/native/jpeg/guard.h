/* libjpeg's errors and warnings, both of which end the work on an image, so that it is left to
 * another decoder: guard.c. */
#ifndef FASTLOOP_GUARD_H
#define FASTLOOP_GUARD_H

#include <stdio.h>

#include <jpeglib.h>
#include <setjmp.h>

/* setjmp(refuse) returns 1 as soon as libjpeg complains of anything. Local variables that have
 * changed since setjmp() are indeterminate then (C11 7.13.2.1): callers read none. */
typedef struct {
    struct jpeg_error_mgr errors;
    struct jpeg_progress_mgr progress;
    jmp_buf refuse;
} fj_guard;

/* Returns the error manager to set before jpeg_create_decompress and jpeg_create_compress. */
struct jpeg_error_mgr *fj_guard_errors(fj_guard *guard);
/* Called after them: bounds libjpeg's memory, and the scans of a progressive file. */
void fj_guard_work(fj_guard *guard, j_common_ptr info);

#endif
