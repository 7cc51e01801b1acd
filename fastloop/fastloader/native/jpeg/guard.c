/* libjpeg's errors and warnings, both of which end what is being done. */
#include "guard.h"

enum { MAX_SCANS = 200 }; /* a few bytes of a progressive file can ask for a scan of all of it */
static const long MAX_NBYTES = 1L << 28; /* of libjpeg's memory: a progressive file is kept whole */

static void refuse(j_common_ptr info) { longjmp(((fj_guard *)info->err)->refuse, 1); }

static void refuse_warning(j_common_ptr info, int level) {
    if (level < 0)
        refuse(info);
}

static void ignore(j_common_ptr info) { (void)info; }

static void ignore_text(j_common_ptr info, char *text) {
    (void)info;
    *text = 0;
}

static void watch_scans(j_common_ptr info) {
    if (info->is_decompressor && ((j_decompress_ptr)info)->input_scan_number > MAX_SCANS)
        refuse(info);
}

/* Not by jpeg_std_error, which prints, and which a static library that was not made for shared ones
 * has in no other way. */
struct jpeg_error_mgr *fj_guard_errors(fj_guard *guard) {
    guard->errors = (struct jpeg_error_mgr){.error_exit = refuse,
                                            .emit_message = refuse_warning,
                                            .output_message = ignore,
                                            .format_message = ignore_text,
                                            .reset_error_mgr = ignore};
    return &guard->errors;
}

void fj_guard_work(fj_guard *guard, j_common_ptr info) {
    info->mem->max_memory_to_use = MAX_NBYTES;
    guard->progress.progress_monitor = watch_scans;
    info->progress = &guard->progress;
}
