/* The state of a decoder, for decode.c, baseline.c and check_libjpeg.c. */
#ifndef FASTLOOP_JPEG_DECODER_H
#define FASTLOOP_JPEG_DECODER_H

#include "libjpeg_errors.h"
#include "jpeg.h"
#include "entropy_scan.h"

/* libjpeg's private header jpegint.h, which declares this structure, is not installed. It has
 * begun with these two pointers since libjpeg 6b (1998); check_libjpeg.c checks that it still
 * does. */
struct jpeg_entropy_decoder {
    void (*start_pass)(j_decompress_ptr info);
    boolean (*decode_mcu)(j_decompress_ptr info, JBLOCKROW *blocks);
};
typedef void (*fj_entropy_function)(void);

typedef struct {
    void *bytes;
    size_t capacity;
} fj_memory;

struct fj_decoder {
    struct jpeg_decompress_struct info; /* its client_data is the decoder */
    fj_errors errors;
    fj_weights rows, columns;
    fj_memory ring;     /* rows of the window, by their number modulo num_rows */
    fj_memory taps;     /* the addresses of the rows of a sum */
    fj_memory line, sums;
    fj_memory turned;   /* a sample before it is turned */
    size_t stride;      /* bytes of a row in the ring */
    int num_rows;
    int reads_scan;     /* entropy_scan.c reads the codes of baseline JPEGs */
    fj_scan scan;
    fj_huffman dc[NUM_HUFF_TBLS], ac[NUM_HUFF_TBLS]; /* kept from image to image */
};

/* Lets entropy_scan.c read the codes if the image is a baseline JPEG. Called when
 * jpeg_start_decompress has returned and rows are to be decoded from column `left` on. */
void fj_read_baseline(fj_decoder *decoder, int left);

/* Returns 1 if the function is libjpeg's. */
int fj_is_of_libjpeg(fj_entropy_function function);

#endif
