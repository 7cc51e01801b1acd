/* Reads a whole file into memory that is used again for the next file. */
#if !defined(_POSIX_C_SOURCE)
#define _POSIX_C_SOURCE 200809L
#endif
#include "jpeg.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static const size_t MAX_NBYTES = (size_t)1 << 30; /* largest encoded image */
static const size_t MAX_SPARE = 1 << 20; /* memory beyond an image's needs, for larger ones */

int fj_reserve(uint8_t **data, size_t *capacity, size_t nbytes) {
    if (nbytes <= *capacity)
        return 1;
    free(*data);
    size_t wanted = nbytes + (nbytes < MAX_SPARE ? nbytes : MAX_SPARE);
    *data = malloc(wanted);
    *capacity = *data ? wanted : 0;
    return *data != NULL;
}

/* Reads nbytes, or as many as there are. Returns 0 with an error of the system. */
static int read_all(fj_file *file, int descriptor, size_t nbytes) {
    file->nbytes = 0;
    while (file->nbytes < nbytes) {
        ssize_t count = read(descriptor, file->data + file->nbytes, nbytes - file->nbytes);
        if (count < 0 && errno == EINTR)
            continue;
        if (count <= 0)
            return count == 0; /* the file has become shorter: its decoder refuses it */
        file->nbytes += (size_t)count;
    }
    return 1;
}

int fj_read_file(fj_file *file, const char *path) {
    struct stat status;
    /* O_NONBLOCK: a path that is a pipe would block until somebody writes to it. It is refused
     * below. */
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0)
        return 0;
    int is_read = !fstat(descriptor, &status) && S_ISREG(status.st_mode) &&
                  status.st_size > 0 && (uint64_t)status.st_size <= MAX_NBYTES &&
                  fj_reserve(&file->data, &file->capacity, (size_t)status.st_size) &&
                  read_all(file, descriptor, (size_t)status.st_size);
    close(descriptor);
    return is_read;
}
