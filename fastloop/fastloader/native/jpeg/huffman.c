/* Tables of Huffman codes (T.81 Annex C), made again only if a file has other codes than the one
 * before. */
#include <string.h>

#include "entropy_scan.h"

enum { LONG_RUN = 15, NUM_LOOKS = 1 << FJ_LOOK_BITS };

/* Returns the symbol of a byte RRRRSSSS (T.81 F.1.2.2.1). Of the bytes without a value, 0xF0
 * (ZRL) stands for 16 zeros, which is a run of 15 and a zero; all others, which baseline files
 * have only as 0x00, end the block. A DC symbol (F.1.2.1.1) has a size alone. */
static fj_symbol symbol_of(uint8_t symbol, int code_length) {
    uint8_t run = symbol >> 4, size = symbol & 15;
    return (fj_symbol){.run = size || run == LONG_RUN ? run : FJ_END,
                       .code_length = (uint8_t)code_length,
                       .size = size,
                       .length = (uint8_t)(code_length + size)};
}

fj_symbol fj_find_symbol(const fj_huffman *table, uint64_t bits) {
    /* DECODE of T.81 F.2.2.3, with limits that are shifted left, so that all lengths are
     * compared with the same 16 bits. */
    uint32_t next = (uint32_t)(bits >> (64 - FJ_MAX_CODE_BITS));
    for (int length = 1; length <= FJ_MAX_CODE_BITS; length++)
        if (next < table->limits[length]) {
            int code = (int)(next >> (FJ_MAX_CODE_BITS - length));
            return symbol_of(table->symbols[code + table->offsets[length]], length);
        }
    return (fj_symbol){.run = FJ_NO_RUN};
}

/* Sets the limits and offsets of each length: codes of one length are consecutive numbers, and
 * the next length goes on at twice the next number (T.81 C.2, Figures C.1 and C.2). */
static void note_codes(fj_huffman *table) {
    int code = 0, place = 0;
    for (int length = 1; length <= FJ_MAX_CODE_BITS; length++) {
        table->offsets[length] = place - code;
        code += table->counts[length];
        place += table->counts[length];
        table->limits[length] = (uint32_t)code << (FJ_MAX_CODE_BITS - length);
        code <<= 1;
    }
}

/* Each code of up to FJ_LOOK_BITS bits is at all looks that begin with it. Codes are in
 * ascending order, so that `look` only advances; the looks that are left begin longer codes, or
 * none. */
static void fill_looks(fj_huffman *table) {
    int look = 0, place = 0;
    for (int length = 1; length <= FJ_LOOK_BITS; length++)
        for (int k = 0; k < table->counts[length]; k++) {
            fj_symbol symbol = symbol_of(table->symbols[place++], length);
            for (int end = look + (NUM_LOOKS >> length); look < end; look++)
                table->looks[look] = symbol;
        }
    for (; look < NUM_LOOKS; look++)
        table->looks[look] = (fj_symbol){0};
}

/* Returns the skip over all symbols that the bits of a look determine. Only the last symbol's value
 * may reach beyond these bits: a skip needs the number of the value's bits, not the bits. */
static fj_skip skip_of(const fj_symbol *looks, int look) {
    fj_skip skip = {0};
    while (skip.length < FJ_LOOK_BITS) {
        fj_symbol symbol = looks[(look << skip.length) & (NUM_LOOKS - 1)];
        int is_end = symbol.run == FJ_END, advance = is_end ? FJ_SKIP_END : symbol.run + 1;
        /* A symbol is known if its whole code is in the bits of the look that are left. Zeros
         * follow them. */
        int is_known = symbol.length && skip.length + symbol.code_length <= FJ_LOOK_BITS;
        /* The sum stays below FJ_END, so that it is told apart from FJ_SKIP_END and FJ_NO_SKIP. */
        if (!is_known || (!is_end && skip.advance + advance >= FJ_END))
            break;
        skip.length += symbol.length;
        skip.advance += (uint8_t)advance;
        if (is_end)
            break;
    }
    return skip.length ? skip : (fj_skip){FJ_NO_SKIP, 0};
}

void fj_make_huffman(fj_huffman *table, const uint8_t *counts, const uint8_t *symbols) {
    if (table->is_made && !memcmp(table->counts, counts, sizeof table->counts) &&
        !memcmp(table->symbols, symbols, sizeof table->symbols))
        return;
    table->is_made = 1;
    memcpy(table->counts, counts, sizeof table->counts);
    memcpy(table->symbols, symbols, sizeof table->symbols);
    note_codes(table);
    fill_looks(table);
    for (int look = 0; look < NUM_LOOKS; look++)
        table->skips[look] = skip_of(table->looks, look);
}
