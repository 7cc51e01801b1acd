/* A decoder of JPEG images with a entropy_scan.c that does not read what is there: the check has to find
 * it, and libjpeg has to read the codes. Prints the reason, and a sum of pixels of the file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "decoder.h"

static int units = 0;

int fj_begin_scan(fj_scan *scan, const uint8_t *data, size_t nbytes) {
    (void)data, (void)nbytes;
    scan->units_left = -1;
    return 1;
}

/* All blocks stay grey. */
int fj_read_unit(fj_scan *scan, int16_t *const *blocks) {
    (void)blocks;
    scan->units_left = 0;
    units++;
    return 1;
}

int main(int argc, char **argv) {
    fj_file file = {0};
    char pixels[3 * 16 * 16];
    fj_crop crop = {.kind = FJ_CENTER_CROP, .height = 16, .width = 16, .shorter_side = 16};
    fj_format format = {.type = FJ_U8, .factor = {1, 1, 1}};
    void *data = malloc(1);
    fj_entropy_function function;
    memcpy(&function, &data, sizeof function);
    printf("%s\n%d\n", fj_own_scan_problem(), fj_is_of_libjpeg(function));
    fj_check_own_scan();
    int of_check = units;
    fj_decoder *decoder = fj_open_decoder();
    if (argc != 2 || !decoder || !fj_read_file(&file, argv[1]) ||
        !fj_make_sample(decoder, file.data, file.nbytes, &crop, &format, 0, pixels))
        return 2;
    int64_t sum = 0;
    for (size_t k = 0; k < sizeof pixels; k++)
        sum += (unsigned char)pixels[k];
    printf("%s\n%d %d\n%lld\n", fj_own_scan_problem(), of_check > 0, units - of_check,
           (long long)sum);
    fj_close_decoder(decoder);
    free(file.data);
    free(data);
    return 0;
}
