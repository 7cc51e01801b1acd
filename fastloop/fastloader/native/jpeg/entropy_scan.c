/* Reads the units of a scan (T.81 F.2.2): bits, blocks, and intervals between restart markers. */
#include "entropy_scan.h"

#include <limits.h>
#include <string.h>

#include "jpeg.h"

enum {
    BLOCK = 64,
    /* Bytes of a block at most: 64 symbols, each of a code of up to 16 bits (T.81 C.1) and a value
     * of up to 15, which is the most that SSSS can say. */
    BLOCK_NBYTES = BLOCK * 31 / 8 + 1,
    /* zeros after the codes: bits_left() is asked once a block only, and refill() looks 8 bytes
     * ahead */
    PADDING = BLOCK_NBYTES + 32,
};

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* The zigzag sequence of T.81 A.3.6: the place of each coefficient in its block. */
static const uint8_t natural_order[BLOCK] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48,
    41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23,
    30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
};

/* ---- bits ---- */

/* The first byte is the highest: codes are read from the highest bit on (T.81 C.3). */
ALWAYS_INLINE uint64_t load_word(const uint8_t *bytes) {
    uint64_t word;
    memcpy(&word, bytes, sizeof word);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

/* Fills the reader to at least 56 bits: two symbols of 25. Bits beyond `count` may be set
 * already. They are those of the byte that is read again, so OR changes nothing. */
ALWAYS_INLINE void refill(fj_reader *reader) {
    reader->bits |= load_word(reader->next) >> reader->count;
    reader->next += (63 - reader->count) >> 3;
    reader->count |= 56;
}

ALWAYS_INLINE void drop(fj_reader *reader, int length) {
    reader->bits <<= length;
    reader->count -= length;
}

/* Negative if codes were read beyond the end of the interval. */
static int64_t bits_left(const fj_reader *reader) {
    return (reader->end - reader->next) * 8 + reader->count;
}

/* ---- blocks ---- */

/* Returns the next symbol. Needs 25 bits (10 of a look, 15 of a value); for longer codes it
 * refills. */
ALWAYS_INLINE fj_symbol next_symbol(fj_reader *reader, const fj_huffman *table) {
    fj_symbol symbol = table->looks[reader->bits >> (64 - FJ_LOOK_BITS)];
    if (__builtin_expect(!symbol.length, 0)) {
        refill(reader);
        symbol = fj_find_symbol(table, reader->bits);
    }
    return symbol;
}

/* Returns the symbol's value: RECEIVE and EXTEND of T.81 F.2.2.4 and F.2.2.1. Bits that begin
 * with 0 are a negative value, by 2^size - 1 too large. There is no branch, as it would be
 * mispredicted half of the time, and size may be 0. */
ALWAYS_INLINE int value_of(fj_symbol symbol, uint64_t bits) {
    bits <<= symbol.code_length;
    int value = (int)((bits >> 1) >> (63 - symbol.size));
    int is_negative = (int)~((int64_t)bits >> 63); /* all bits or none */
    return value - (is_negative & ((1 << symbol.size) - 1));
}

/* Reads the AC coefficients of a block (T.81 F.2.2.2). Returns 0 if the block is broken: a run
 * goes beyond its end, or there is no such code. */
ALWAYS_INLINE int read_coefficients(fj_reader *reader, const fj_huffman *table, int16_t *block) {
    for (int k = 1; k < BLOCK;) {
        refill(reader);
        /* 56 bits are enough for two symbols of 25, and for one long symbol of 31 and the next
         * of 25. */
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

/* Passes over the AC coefficients of a block, several symbols by one look at a table. Returns 0 if
 * the block is broken. */
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
        } else { /* a long code, or the skip reaches into the next block: one symbol alone */
            fj_symbol symbol = next_symbol(reader, table);
            drop(reader, symbol.length);
            k += symbol.run + 1;
            if (k > BLOCK)
                return symbol.run == FJ_END;
        }
    }
    return 1;
}

/* Reads the blocks of a unit, or passes over them if `blocks` is NULL: DC differences are needed
 * all the same, as each prediction is the value before (T.81 F.1.1.5.1). Returns 0 if they are
 * broken. */
static int read_blocks(fj_scan *scan, int16_t *const *blocks) {
    fj_reader reader = scan->reader;
    int is_sound = 1;
    for (int k = 0; is_sound && k < scan->num_blocks; k++) {
        const fj_block *block = &scan->blocks[k];
        refill(&reader);
        fj_symbol symbol = next_symbol(&reader, block->dc);
        uint32_t change = (uint32_t)value_of(symbol, reader.bits);
        /* Unsigned, as the sum of a broken file may overflow. */
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

/* Returns the next marker, or `end`: a byte FF that no stuffed 0 follows (T.81 F.1.2.3). */
static const uint8_t *find_marker(const uint8_t *next, const uint8_t *end) {
    while (next < end && (next = memchr(next, 0xFF, (size_t)(end - next)))) {
        if (end - next >= 2 && next[1])
            return next;
        next++;
    }
    return end;
}

/* Gives the reader the interval's codes up to the next marker, without the 0 that is stuffed
 * after each FF (T.81 F.1.2.3). Predictions begin with 0 in each interval (T.81 E.2.4,
 * F.1.1.5.1). */
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

/* Passes the restart marker after an interval; returns 0 if it is not the expected one. Markers
 * count modulo 8 (T.81 B.2.1). */
static int pass_marker(fj_scan *scan) {
    if (scan->is_passed_over)
        scan->next = find_marker(scan->next, scan->end);
    /* Up to 7 bits pad the last byte (T.81 F.1.2.3): more are codes that no unit has read. */
    else if (bits_left(&scan->reader) >= 8)
        return 0;
    const uint8_t *next = scan->next;
    if (scan->end - next < 2 || next[0] != 0xFF || next[1] != 0xD0 + scan->next_marker)
        return 0;
    scan->next += 2;
    scan->next_marker = (scan->next_marker + 1) & 7;
    return 1;
}

/* Returns 1 if no unit from this column on to the next marker is needed: either no unit of the row
 * is needed, or these units are beside the needed columns. An interval that continues in the next
 * row is always read. */
static int is_needless(const fj_scan *scan, int column, int is_row_needed) {
    int end = column + scan->interval;
    if (!scan->interval || end > scan->num_columns)
        return 0;
    return !is_row_needed || end <= scan->first_column || column >= scan->end_column;
}

/* Begins the interval of the next unit. Returns 0 if the data is not sound. */
static int begin_interval(fj_scan *scan, int column, int is_row_needed) {
    if (scan->units_left == 0 && !pass_marker(scan))
        return 0;
    scan->units_left = scan->interval ? scan->interval : INT_MAX;
    scan->is_passed_over = is_needless(scan, column, is_row_needed);
    if (!scan->is_passed_over)
        open_interval(scan);
    return 1;
}

int fj_begin_scan(fj_scan *scan, const uint8_t *data, size_t nbytes) {
    scan->next = data;
    scan->end = data + nbytes;
    scan->units_left = -1;
    scan->column = scan->next_marker = 0;
    return fj_reserve(&scan->codes, &scan->capacity, nbytes + PADDING);
}

int fj_read_unit(fj_scan *scan, int16_t *const *blocks) {
    int column = scan->column;
    scan->column = column + 1 < scan->num_columns ? column + 1 : 0;
    if (scan->units_left <= 0 && !begin_interval(scan, column, blocks != NULL))
        return 0;
    scan->units_left--;
    if (scan->is_passed_over)
        return 1;
    int is_needed = column >= scan->first_column && column < scan->end_column;
    return read_blocks(scan, is_needed ? blocks : NULL);
}
