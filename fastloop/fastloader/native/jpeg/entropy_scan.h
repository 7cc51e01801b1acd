/* The Huffman codes of a baseline JPEG's only scan (ITU-T T.81, F.2.2), read faster than by
 * libjpeg: most symbols are found together with their values by one look at a table, and
 * coefficients that no pixel of the sample needs are passed over, several by one look.
 *
 * Nothing here knows of libjpeg; baseline.c puts it in the place of libjpeg's own decoder. Data
 * that is not sound is refused. "T.81" is cited below by section.
 */
#ifndef FASTLOOP_JPEG_SCAN_H
#define FASTLOOP_JPEG_SCAN_H

#include <stddef.h>
#include <stdint.h>

/* ---- a table of codes: huffman.c ---- */

enum {
    FJ_LOOK_BITS = 10,      /* index of the tables; 9, 11 and 12 were not faster */
    FJ_MAX_CODE_BITS = 16,  /* T.81 C.1 */
    FJ_END = 64,        /* the run of the symbol that ends a block (EOB, T.81 F.1.2.2.1) */
    FJ_SKIP_END = 128,  /* added to the advance of a skip that ends with it */
    FJ_NO_SKIP = 255,
    FJ_NO_RUN = 255,    /* there is no such code */
};

/* A symbol with its value: `run` coefficients of 0, then one with its value in the `size` bits
 * after the code (RRRR and SSSS of T.81 F.1.2.2.1). length: the bits of code and value, or 0 if
 * the code is longer than a look. */
typedef struct {
    uint8_t run, code_length, size, length;
} fj_symbol;

/* One symbol or several with their values: the number of coefficients and of bits that they
 * take. */
typedef struct {
    uint8_t advance, length;
} fj_skip;

typedef struct {
    int is_made;
    uint8_t counts[FJ_MAX_CODE_BITS + 1]; /* number of codes of each length: BITS, T.81 B.2.4.2 */
    uint8_t symbols[256];
    /* 16 bits below this begin with a code of at most this length */
    uint32_t limits[FJ_MAX_CODE_BITS + 1];
    int32_t offsets[FJ_MAX_CODE_BITS + 1]; /* from a code of this length to its place in symbols */
    fj_symbol looks[1 << FJ_LOOK_BITS];    /* indexed by the next bits */
    fj_skip skips[1 << FJ_LOOK_BITS];      /* FJ_NO_SKIP: not even one symbol is known */
} fj_huffman;

/* Makes the table of these codes, which libjpeg has found sound, unless it is of the same codes
 * already. */
void fj_make_huffman(fj_huffman *table, const uint8_t *counts, const uint8_t *symbols);
/* Returns the symbol with which 64 bits begin, however long. Its run is FJ_NO_RUN if there is no
 * such code. */
fj_symbol fj_find_symbol(const fj_huffman *table, uint64_t bits);

/* ---- a scan, unit by unit (T.81's MCU, A.2): entropy_scan.c ---- */

/* A unit has at most 10 blocks, and a scan 4 components (T.81 B.2.3). */
enum { FJ_MAX_BLOCKS = 10, FJ_MAX_COMPONENTS = 4 };

typedef struct {
    const uint8_t *next, *end;  /* codes without stuffed bytes and markers; zeros follow */
    uint64_t bits;              /* the next bits, the first one is the highest */
    int count;                  /* number of valid bits */
} fj_reader;

typedef struct {
    const fj_huffman *dc, *ac;
    int component;
} fj_block;

typedef struct {
    const uint8_t *next, *end;  /* the file's data after the reader's interval */
    fj_reader reader;
    uint8_t *codes;             /* the reader's memory, used again for the next image */
    size_t capacity;
    int num_blocks;             /* blocks in a unit */
    fj_block blocks[FJ_MAX_BLOCKS];
    uint32_t predictions[FJ_MAX_COMPONENTS];
    int num_columns, column;    /* units in a row; column of the next unit */
    int first_column, end_column; /* these columns, without the last, have pixels needed */
    int interval;               /* units between restart markers; 0: there are none */
    int units_left;             /* units until the next one; -1 before the first unit */
    int next_marker;            /* 0 to 7 */
    int is_passed_over;         /* no unit before the next marker is needed */
} fj_scan;

/* Begins a scan of this data. num_blocks, blocks, num_columns, first_column, end_column and
 * interval are set. Returns 0 if there is no memory. */
int fj_begin_scan(fj_scan *scan, const uint8_t *data, size_t nbytes);
/* Reads the next unit's coefficients, in natural order, to its blocks, which are zeros. NULL: no
 * unit of its row is needed. Returns 0 if the data is not sound. */
int fj_read_unit(fj_scan *scan, int16_t *const *blocks);

#endif
