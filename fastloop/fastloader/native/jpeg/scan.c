/* Reading the units of a scan. */
#include "scan.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum {
    BLOCK = 64,
    BLOCK_NBYTES = BLOCK * 31 / 8 + 1, /* of codes at most: a symbol has 16 + 15 bits */
    MAX_SPARE = 1 << 20,               /* for the next image */
    PADDING = BLOCK_NBYTES + 32,       /* the reader is checked once a block, and looks ahead */
};

#define ALWAYS_INLINE static inline __attribute__((always_inline))

static const uint8_t natural_order[BLOCK] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48,
    41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23,
    30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
};

/* ---- bits ---- */

ALWAYS_INLINE uint64_t load_word(const uint8_t *bytes) {
    uint64_t word;
    memcpy(&word, bytes, sizeof word);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

/* At least 56 bits. */
ALWAYS_INLINE void refill(fj_reader *reader) {
    reader->bits |= load_word(reader->next) >> reader->count; /* a part of a byte is read again */
    reader->next += (63 - reader->count) >> 3;
    reader->count |= 56;
}

ALWAYS_INLINE void drop(fj_reader *reader, int length) {
    reader->bits <<= length;
    reader->count -= length;
}

static int64_t bits_left(const fj_reader *reader) {
    return (reader->end - reader->next) * 8 + reader->count;
}

/* ---- blocks ---- */

/* The next symbol; of at most 25 bits, or the reader is filled. */
ALWAYS_INLINE fj_symbol next_symbol(fj_reader *reader, const fj_huffman *table) {
    fj_symbol symbol = table->looks[reader->bits >> (64 - FJ_LOOK_BITS)];
    if (__builtin_expect(!symbol.length, 0)) {
        refill(reader);
        symbol = fj_find_symbol(table, reader->bits);
    }
    return symbol;
}

/* Its value: bits that begin with 0 are of a negative one. */
ALWAYS_INLINE int value_of(fj_symbol symbol, uint64_t bits) {
    bits <<= symbol.code_length;
    int value = (int)((bits >> 1) >> (63 - symbol.size));
    int is_negative = (int)~((int64_t)bits >> 63); /* all bits or none */
    return value - (is_negative & ((1 << symbol.size) - 1));
}

/* 0 where the block is broken. */
ALWAYS_INLINE int read_coefficients(fj_reader *reader, const fj_huffman *table, int16_t *block) {
    for (int k = 1; k < BLOCK;) {
        refill(reader);
        for (int twice = 0; twice < 2 && k < BLOCK; twice++) {
            fj_symbol symbol = next_symbol(reader, table);
            int value = value_of(symbol, reader->bits);
            drop(reader, symbol.length);
            k += symbol.run;
            if (k >= BLOCK)
                return symbol.run == FJ_END;
            block[natural_order[k++]] = (int16_t)value;
        }
    }
    return 1;
}

ALWAYS_INLINE int skip_coefficients(fj_reader *reader, const fj_huffman *table) {
    for (int k = 1; k < BLOCK;) {
        refill(reader);
        fj_skip skip = table->skips[reader->bits >> (64 - FJ_LOOK_BITS)];
        int next = k + skip.advance;
        if (next <= BLOCK) {
            drop(reader, skip.length);
            k = next;
        } else if (next > FJ_SKIP_END && next < FJ_SKIP_END + BLOCK) {
            drop(reader, skip.length);
            return 1;
        } else { /* a long code, or a symbol fills the block and the others are the next one's */
            fj_symbol symbol = next_symbol(reader, table);
            drop(reader, symbol.length);
            k += symbol.run + 1;
            if (k > BLOCK)
                return symbol.run == FJ_END;
        }
    }
    return 1;
}

static int read_blocks(fj_scan *scan, int16_t *const *blocks) {
    fj_reader reader = scan->reader;
    int is_sound = 1;
    for (int k = 0; is_sound && k < scan->num_blocks; k++) {
        const fj_block *block = &scan->blocks[k];
        refill(&reader);
        fj_symbol symbol = next_symbol(&reader, block->dc);
        uint32_t change = (uint32_t)value_of(symbol, reader.bits);
        uint32_t value = scan->predictions[block->component] += change;
        drop(&reader, symbol.length);
        if (blocks) {
            blocks[k][0] = (int16_t)(uint16_t)value;
            is_sound = read_coefficients(&reader, block->ac, blocks[k]);
        } else {
            is_sound = skip_coefficients(&reader, block->ac);
        }
        is_sound = is_sound && symbol.length && bits_left(&reader) >= 0;
    }
    scan->reader = reader;
    return is_sound;
}

/* ---- intervals: from one restart marker to the next, or the whole scan ---- */

static const uint8_t *find_marker(const uint8_t *next, const uint8_t *end) {
    while (next < end && (next = memchr(next, 0xFF, (size_t)(end - next)))) {
        if (end - next >= 2 && next[1])
            return next;
        next++;
    }
    return end;
}

/* Let the reader have the interval's codes, without the 0 behind each FF. */
static void open_interval(fj_scan *scan) {
    const uint8_t *next = scan->next, *end = scan->end;
    uint8_t *codes = scan->codes;
    while (next < end) {
        const uint8_t *ff = memchr(next, 0xFF, (size_t)(end - next));
        size_t nbytes = (size_t)((ff ? ff : end) - next);
        memcpy(codes, next, nbytes);
        codes += nbytes;
        next += nbytes;
        if (end - next < 2 || next[1])
            break;
        *codes++ = 0xFF;
        next += 2;
    }
    memset(codes, 0, PADDING);
    scan->next = next;
    scan->reader = (fj_reader){.next = scan->codes, .end = codes};
    memset(scan->predictions, 0, sizeof scan->predictions);
}

static int pass_marker(fj_scan *scan) {
    if (scan->is_passed_over)
        scan->next = find_marker(scan->next, scan->end);
    else if (bits_left(&scan->reader) >= 8)
        return 0;
    const uint8_t *next = scan->next;
    if (scan->end - next < 2 || next[0] != 0xFF || next[1] != 0xD0 + scan->next_marker)
        return 0;
    scan->next += 2;
    scan->next_marker = (scan->next_marker + 1) & 7;
    return 1;
}

/* Whether all units from this column on to the next marker are in a row of which none is needed, or
 * beside the columns that are. */
static int is_needless(const fj_scan *scan, int column, int is_row_needed) {
    int past = column + scan->interval;
    if (!scan->interval || past > scan->num_columns)
        return 0;
    return !is_row_needed || past <= scan->first || column >= scan->past;
}

static int begin_interval(fj_scan *scan, int column, int is_row_needed) {
    if (scan->left == 0 && !pass_marker(scan))
        return 0;
    scan->left = scan->interval ? scan->interval : INT_MAX;
    scan->is_passed_over = is_needless(scan, column, is_row_needed);
    if (!scan->is_passed_over)
        open_interval(scan);
    return 1;
}

int fj_begin_scan(fj_scan *scan, const uint8_t *data, size_t nbytes) {
    if (nbytes + PADDING > scan->room) {
        free(scan->codes);
        scan->room = nbytes + (nbytes < MAX_SPARE ? nbytes : MAX_SPARE) + PADDING;
        scan->codes = malloc(scan->room);
        scan->room = scan->codes ? scan->room : 0;
    }
    scan->next = data;
    scan->end = data + nbytes;
    scan->left = -1;
    scan->column = scan->next_marker = 0;
    return scan->codes != NULL;
}

int fj_read_unit(fj_scan *scan, int16_t *const *blocks) {
    int column = scan->column;
    scan->column = column + 1 < scan->num_columns ? column + 1 : 0;
    if (scan->left <= 0 && !begin_interval(scan, column, blocks != NULL))
        return 0;
    scan->left--;
    if (scan->is_passed_over)
        return 1;
    return read_blocks(scan, column >= scan->first && column < scan->past ? blocks : NULL);
}
