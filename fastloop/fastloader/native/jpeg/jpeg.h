/* Samples of encoded images: the needed part of a JPEG is decoded, resized, flipped and
 * converted in one pass, row by row, so that neither the image nor its crop is ever in memory as
 * a whole.
 *
 * Nothing here uses Python; module.c makes the Python module of it. Any file that is not a sound
 * JPEG of one or three colour components is left to a general decoder.
 */
#ifndef FASTLOOP_JPEG_H
#define FASTLOOP_JPEG_H

#include <stddef.h>
#include <stdint.h>

/* Pillow refuses images of more pixels, and so does columns/images.py. */
#define FJ_MAX_PIXELS ((size_t)89478485 * 2)

/* ---- the cut of an image: cut.c ---- */

typedef enum { FJ_RANDOM_RESIZED_CROP, FJ_CENTER_CROP } fj_crop_kind;

typedef struct {
    fj_crop_kind kind;
    int height, width;            /* size of a sample */
    double min_area, max_area;    /* FJ_RANDOM_RESIZED_CROP: share of the image's area, */
    double min_ratio, max_ratio;  /* and width / height of the cut */
    int shorter_side;             /* FJ_CENTER_CROP: length to which it is resized first */
    double flip;                  /* probability of a horizontal flip */
    int applies_orientation;      /* 1: the image is cut as its EXIF data says it is shown */
} fj_crop;

/* The cut along one axis: `length` pixels of the image from `start` on are resized to `resized`
 * pixels, of which `count` from `first` on are the sample. */
typedef struct {
    int start, length, resized, first, count;
} fj_axis;

typedef struct {
    fj_axis rows, columns;
    int is_flipped;
} fj_cut;

/* Returns the cut that a sample's key draws. crops.py computes the same numbers. */
fj_cut fj_draw_cut(const fj_crop *crop, uint64_t key, int height, int width);

/* ---- how an image is shown: orientation.c ---- */

/* Returns 1 to 8, as EXIF numbers orientations; 1 if a JPEG states none, or nothing that can be
 * read. */
int fj_read_orientation(const uint8_t *data, size_t nbytes);

/* ---- how the pixels of an axis are weighted: weights.c ---- */

enum { FJ_WEIGHT_BITS = 14, FJ_LINE_BITS = 7 };

/* Pixel k of the sample is the sum of `taps` pixels of the image from firsts[k] on. */
typedef struct {
    int begin, end;    /* the pixels of the image that have a weight */
    int count, taps;   /* taps is even; the last weight may be 0 */
    int *firsts;
    int16_t *weights;  /* taps for each pixel: the sum of each is 1 << FJ_WEIGHT_BITS */
    size_t capacity;
} fj_weights;

/* Sets the weights of Pillow's antialiased bilinear filter. Returns 0 if there is no memory. */
int fj_weigh(fj_weights *weights, const fj_axis *axis, int is_flipped);
void fj_free_weights(fj_weights *weights);

/* ---- sums of weighted pixels: resize.c ---- */

/* Sets line[i] to the weighted sum of rows[0..taps - 1][i], in 1 / (1 << FJ_LINE_BITS) of 255.
 * Rows and line have space for `count` rounded up to a multiple of 32. */
void fj_combine_rows(const uint8_t *const *rows, const int16_t *weights, int taps, int count,
                     int16_t *line);
/* Sets `sums`, four numbers for each pixel of the sample's row, in 1 / (1 << (FJ_WEIGHT_BITS +
 * FJ_LINE_BITS)) of 255. `line` begins with pixel weights->begin. */
void fj_combine_columns(const fj_weights *weights, const int16_t *line, int32_t *sums);

/* ---- how samples are delivered: pixels.c ---- */

typedef enum { FJ_U8, FJ_F32, FJ_BF16 } fj_type;

typedef struct {
    fj_type type;
    int channels_last;           /* 0: three planes */
    float factor[3], offset[3];  /* floats are value * factor + offset, with values up to 255 */
} fj_format;

size_t fj_sample_nbytes(const fj_crop *crop, const fj_format *format);
void fj_write_row(const fj_format *format, const fj_crop *crop, int row, const int32_t *sums,
                  char *sample);

/* ---- samples: decode.c and file.c ---- */

typedef struct fj_decoder fj_decoder;

/* Checks whether entropy_scan.c can read the codes of baseline JPEGs in the place of libjpeg.
 * Called once, before the first decoder is opened; until then libjpeg reads them. */
void fj_check_own_scan(void);
/* Returns NULL if entropy_scan.c reads them, or the reason why libjpeg does. */
const char *fj_own_scan_problem(void);

/* Returns NULL if there is no memory. A decoder is used by one thread at a time. */
fj_decoder *fj_open_decoder(void);
void fj_close_decoder(fj_decoder *decoder);
/* Writes the sample with this key. Returns 0 if the image is left to another decoder; the
 * sample's bytes are undefined then. */
int fj_make_sample(fj_decoder *decoder, const uint8_t *data, size_t nbytes, const fj_crop *crop,
                   const fj_format *format, uint64_t key, char *sample);

typedef struct {
    uint8_t *data;
    size_t nbytes, capacity;
} fj_file;

/* Provides memory for so many bytes, or more; those that were there are lost. Returns 0 if there
 * is none. */
int fj_reserve(uint8_t **data, size_t *capacity, size_t nbytes);
/* Reads the file's bytes, into memory that is used again. Returns 0 if it can't be read. */
int fj_read_file(fj_file *file, const char *path);

#endif
