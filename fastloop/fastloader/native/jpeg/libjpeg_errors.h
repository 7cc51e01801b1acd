/* libjpeg's errors and warnings, both of which end the work on an image, so that it is left to
 * another decoder: libjpeg_errors.c. */
#ifndef FASTLOOP_LIBJPEG_ERRORS_H
#define FASTLOOP_LIBJPEG_ERRORS_H

#include <stdio.h>

#include <jpeglib.h>
#include <setjmp.h>

/* setjmp(refuse) returns 1 as soon as libjpeg complains of anything. Local variables that have
 * changed since setjmp() are indeterminate then (C11 7.13.2.1): callers read none. */
typedef struct {
    struct jpeg_error_mgr manager;
    struct jpeg_progress_mgr progress;
    jmp_buf refuse;
} fj_errors;

/* Returns the error manager to set before jpeg_create_decompress and jpeg_create_compress. */
struct jpeg_error_mgr *fj_set_errors(fj_errors *errors);
/* Called after them: bounds libjpeg's memory, and the scans of a progressive file. */
void fj_set_limits(fj_errors *errors, j_common_ptr info);

#endif
