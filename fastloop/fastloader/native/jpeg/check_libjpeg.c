/* Checks whether entropy_scan.c may take the place of libjpeg's own entropy decoder. The place is a
 * pointer in a structure that is private to libjpeg, and another libjpeg may have it elsewhere. The
 * check is made once, by the addresses there and by an image that both decoders must read alike. */
#define _GNU_SOURCE /* dladdr() */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "decoder.h"

enum { SIDE = 32, CHANNELS = 3, NBYTES = CHANNELS * SIDE * SIDE };

static const char *problem = "it has not been checked";

const char *fj_own_scan_problem(void) { return problem; }

/* ---- the version, when this is compiled ---- */

/* jpegint.h of libjpeg-turbo 1.5 to 3.1 begins the structure with the two pointers; headers of
 * other libraries, and of versions that nobody has read yet, do not promise it. */
#if defined(LIBJPEG_TURBO_VERSION_NUMBER) && LIBJPEG_TURBO_VERSION_NUMBER >= 1005000 && \
    LIBJPEG_TURBO_VERSION_NUMBER < 4000000
static const char *version_problem = NULL;
#else
static const char *version_problem = "it was built with a libjpeg of another version";
#endif

/* ---- an image: codes of two kinds of components, in segments ---- */

typedef struct {
    fj_errors errors;
    struct jpeg_compress_struct out;
    unsigned char *data;
    unsigned long nbytes;
} writer;

static void write_rows(j_compress_ptr out) {
    jpeg_start_compress(out, TRUE);
    while (out->next_scanline < SIDE) {
        JSAMPLE row[CHANNELS * SIDE];
        /* Neither smooth nor regular: there are short and long codes, and runs of zeros. */
        for (unsigned k = 0; k < sizeof row; k++)
            row[k] = (JSAMPLE)((k * k * 7 + out->next_scanline * (k + 13)) >> 2);
        JSAMPROW address = row;
        jpeg_write_scanlines(out, &address, 1);
    }
    jpeg_finish_compress(out);
}

/* Returns 0 if libjpeg complains. The writer is not in this frame, as setjmp() needs it. */
static int write_image(writer *writer) {
    j_compress_ptr out = &writer->out;
    out->err = fj_set_errors(&writer->errors);
    if (setjmp(writer->errors.refuse))
        return 0;
    jpeg_create_compress(out);
    jpeg_mem_dest(out, &writer->data, &writer->nbytes);
    out->image_width = out->image_height = SIDE;
    out->input_components = CHANNELS;
    out->in_color_space = JCS_RGB;
    jpeg_set_defaults(out); /* colours at half the resolution: six blocks in a unit */
    out->restart_interval = 3;
    write_rows(out);
    return 1;
}

/* ---- the two checks ---- */

/* Returns 1 if the function is one of the same library as libjpeg's public ones. An address of
 * memory, or a number, which another structure may have in its place, is not. */
int fj_is_of_libjpeg(fj_entropy_function function) {
    Dl_info found, libjpeg;
    boolean (*public)(j_decompress_ptr) = jpeg_finish_decompress;
    void *address, *known;
    /* C converts no function's address to a void *, but POSIX lets both have the same bits. */
    memcpy(&address, &function, sizeof address);
    memcpy(&known, &public, sizeof known);
    return dladdr(address, &found) && dladdr(known, &libjpeg) &&
           found.dli_fbase == libjpeg.dli_fbase;
}

/* Returns 1 if the image's entropy decoder has libjpeg's functions at the known places, and 0
 * also if libjpeg complains. */
static int has_known_structure(fj_decoder *decoder, const writer *image) {
    j_decompress_ptr info = &decoder->info;
    if (setjmp(decoder->errors.refuse))
        return 0;
    jpeg_mem_src(info, image->data, image->nbytes);
    jpeg_read_header(info, TRUE);
    jpeg_start_decompress(info);
    return fj_is_of_libjpeg((fj_entropy_function)info->entropy->start_pass) &&
           fj_is_of_libjpeg((fj_entropy_function)info->entropy->decode_mcu);
}

/* Returns 0 if the image can't be decoded. Nothing is resized or flipped. */
static int decode(fj_decoder *decoder, const writer *image, int reads_scan, char *pixels) {
    fj_crop crop = {.kind = FJ_CENTER_CROP, .height = SIDE, .width = SIDE, .shorter_side = SIDE};
    fj_format format = {.type = FJ_U8, .factor = {1, 1, 1}};
    decoder->reads_scan = reads_scan;
    decoder->scan.units_left = -1;
    return fj_make_sample(decoder, image->data, image->nbytes, &crop, &format, 0, pixels);
}

/* Returns the reason why entropy_scan.c is not used, or NULL. */
static const char *find_problem(fj_decoder *decoder, writer *image) {
    static char expected[NBYTES], pixels[NBYTES];
    if (version_problem)
        return version_problem;
    if (!decoder || !write_image(image) || !decode(decoder, image, 0, expected))
        return "libjpeg can't decode its own image";
    int is_known = has_known_structure(decoder, image);
    jpeg_abort_decompress(&decoder->info);
    if (!is_known)
        return "this libjpeg's decoder is built in another way";
    /* A unit has been read by entropy_scan.c if the count of those before the next marker has
     * begun. */
    if (!decode(decoder, image, 1, pixels) || decoder->scan.units_left == -1 ||
        memcmp(pixels, expected, NBYTES))
        return "this libjpeg decodes an image differently";
    return NULL;
}

void fj_check_own_scan(void) {
    fj_decoder *decoder = fj_open_decoder();
    writer *image = calloc(1, sizeof *image);
    problem = image ? find_problem(decoder, image) : "there was no memory to check it";
    if (image) {
        jpeg_destroy_compress(&image->out); /* does nothing if it has not been created */
        free(image->data);
    }
    free(image);
    fj_close_decoder(decoder);
}
