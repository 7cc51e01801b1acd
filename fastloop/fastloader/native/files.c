/* Checks whether files that are mapped as rows have become shorter: reading a row beyond a file's
 * end would end the process by SIGBUS. Sizes are compared shortly before rows are read, which costs
 * nothing per row, but does not notice a file that is shortened afterwards. */
#if !defined(_POSIX_C_SOURCE)
#define _POSIX_C_SOURCE 200809L
#endif
#include "core.h"

#include <sys/stat.h>

int fl_is_cut_off(const fl_column *column) {
    struct stat status;
    if (!column->path || stat(column->path, &status))
        return 0;
    /* if another file has been put in its place, the map still shows the old one, which is whole */
    int is_same = (uint64_t)status.st_dev == column->device &&
                  (uint64_t)status.st_ino == column->inode;
    return is_same && status.st_size < column->end;
}

int fl_find_cut_off(const fl_column *columns, int num_columns) {
    for (int c = 0; c < num_columns; c++)
        if (fl_is_cut_off(&columns[c]))
            return c;
    return -1;
}
