/* The Huffman codes of a baseline JPEG's only scan, read faster than by libjpeg: most symbols are found
 * together with their values by one look at a table, and coefficients that no pixel of the sample needs
 * are passed over, several by one look.
 *
 * Nothing here knows of libjpeg; baseline.c puts it in the place of libjpeg's own. Whatever is not sound
 * is refused.
 */
#ifndef FASTLOOP_JPEG_SCAN_H
#define FASTLOOP_JPEG_SCAN_H

#include <stddef.h>
#include <stdint.h>

/* ---- a table of codes: huffman.c ---- */

enum {
    FJ_LOOK_BITS = 10,
    FJ_MAX_CODE_BITS = 16,
    FJ_END = 64,        /* the run of the symbol that ends a block */
    FJ_SKIP_END = 128,  /* added to the advance of a skip that ends with it */
    FJ_NO_SKIP = 255,
    FJ_NO_RUN = 255,    /* there is no such code */
};

/* A symbol: `run` coefficients of 0 before one whose value is in the `size` bits behind the code's, and
 * the bits of both. length 0: the code is longer than a look. */
typedef struct {
    uint8_t run, code_length, size, length;
} fj_symbol;

/* One symbol or several: by how many coefficients they advance, and their bits. */
typedef struct {
    uint8_t advance, length;
} fj_skip;

typedef struct {
    int is_made;
    uint8_t counts[FJ_MAX_CODE_BITS + 1]; /* of codes of each length, as in the file */
    uint8_t symbols[256];
    uint32_t limits[FJ_MAX_CODE_BITS + 1]; /* 16 bits below this begin with a code of this length */
    int32_t offsets[FJ_MAX_CODE_BITS + 1]; /* from a code of this length to its place in symbols */
    fj_symbol looks[1 << FJ_LOOK_BITS];    /* by the next bits */
    fj_skip skips[1 << FJ_LOOK_BITS];      /* FJ_NO_SKIP: they are too few */
} fj_huffman;

/* Make the table of these codes, which libjpeg has found sound, if it is not of the same. */
void fj_make_huffman(fj_huffman *table, const uint8_t *counts, const uint8_t *symbols);
/* The symbol with which 64 bits begin, however long; its run may be FJ_NO_RUN. */
fj_symbol fj_find_symbol(const fj_huffman *table, uint64_t bits);

/* ---- a scan, unit by unit (the standard's MCU): scan.c ---- */

enum { FJ_MAX_BLOCKS = 10, FJ_MAX_COMPONENTS = 4 };

typedef struct {
    const uint8_t *next, *end;  /* bytes of the codes alone; zeros are behind them */
    uint64_t bits;              /* the next ones, from the highest on */
    int count;                  /* of them that have been read */
} fj_reader;

typedef struct {
    const fj_huffman *dc, *ac;
    int component;
} fj_block;

typedef struct {
    const uint8_t *next, *end;  /* the data behind the codes that the reader has */
    fj_reader reader;
    uint8_t *codes;             /* memory of the reader's, used again for the next image */
    size_t room;
    int num_blocks;             /* of a unit */
    fj_block blocks[FJ_MAX_BLOCKS];
    uint32_t predictions[FJ_MAX_COMPONENTS];
    int num_columns, column;    /* of units; the next one's */
    int first, past;            /* the columns whose coefficients are needed */
    int interval;               /* units between restart markers; 0: there are none */
    int left;                   /* units until the next one; -1 before the first unit */
    int next_marker;            /* 0 to 7 */
    int is_passed_over;         /* no unit is needed before the next marker */
} fj_scan;

/* Begin a scan of this data, for which all else is set; 0 where memory is short. */
int fj_begin_scan(fj_scan *scan, const uint8_t *data, size_t nbytes);
/* Read the next unit's coefficients, in natural order, to its blocks of zeros. NULL: none of its row's
 * units is needed. Returns 0 where the data is not sound. */
int fj_read_unit(fj_scan *scan, int16_t *const *blocks);

#endif
