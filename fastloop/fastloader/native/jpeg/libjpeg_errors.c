/* libjpeg's errors and warnings, both of which end the work on an image. */
#include "libjpeg_errors.h"

enum { MAX_SCANS = 200 }; /* a few bytes of a progressive file can ask for a scan of all of it */
static const long MAX_NBYTES = 1L << 28; /* of libjpeg's memory: a progressive file is kept whole */

/* Leaves libjpeg from any of its functions. `manager` is the first member of fj_errors, so
 * libjpeg's pointer to it can be cast to fj_errors. */
static void refuse(j_common_ptr info) { longjmp(((fj_errors *)info->err)->refuse, 1); }

/* Levels below 0 are warnings of corrupt data, from which libjpeg would go on with wrong pixels. */
static void refuse_warning(j_common_ptr info, int level) {
    if (level < 0)
        refuse(info);
}

static void ignore(j_common_ptr info) { (void)info; }

static void ignore_text(j_common_ptr info, char *text) {
    (void)info;
    *text = 0;
}

/* Called by libjpeg as it works; only a progressive file has more than a few scans. */
static void watch_scans(j_common_ptr info) {
    if (info->is_decompressor && ((j_decompress_ptr)info)->input_scan_number > MAX_SCANS)
        refuse(info);
}

/* jpeg_std_error() is not used: it prints, and its message table can't be linked from a static
 * libjpeg that was compiled without -fPIC. */
struct jpeg_error_mgr *fj_set_errors(fj_errors *errors) {
    errors->manager = (struct jpeg_error_mgr){.error_exit = refuse,
                                            .emit_message = refuse_warning,
                                            .output_message = ignore,
                                            .format_message = ignore_text,
                                            .reset_error_mgr = ignore};
    return &errors->manager;
}

void fj_set_limits(fj_errors *errors, j_common_ptr info) {
    info->mem->max_memory_to_use = MAX_NBYTES;
    errors->progress.progress_monitor = watch_scans;
    info->progress = &errors->progress;
}
