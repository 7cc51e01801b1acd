/* libjpeg's errors and warnings, both of which end what is being done, so that the image is left to
 * another decoder: guard.c. */
#ifndef FASTLOOP_GUARD_H
#define FASTLOOP_GUARD_H

#include <stdio.h>

#include <jpeglib.h>
#include <setjmp.h>

/* setjmp(refuse) returns 1 as soon as libjpeg complains of anything. */
typedef struct {
    struct jpeg_error_mgr errors;
    struct jpeg_progress_mgr progress;
    jmp_buf refuse;
} fj_guard;

/* To be called before jpeg_create_decompress and jpeg_create_compress. */
struct jpeg_error_mgr *fj_guard_errors(fj_guard *guard);
/* And after it: bounds of memory, and of the scans of a progressive file. */
void fj_guard_work(fj_guard *guard, j_common_ptr info);

#endif
