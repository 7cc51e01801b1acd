/* Tables of Huffman codes, made again only where a file has others than the one before. */
#include <string.h>

#include "scan.h"

enum { LONG_RUN = 15, NUM_LOOKS = 1 << FJ_LOOK_BITS };

static fj_symbol symbol_of(uint8_t symbol, int code_length) {
    uint8_t run = symbol >> 4, size = symbol & 15;
    return (fj_symbol){.run = size || run == LONG_RUN ? run : FJ_END,
                       .code_length = (uint8_t)code_length,
                       .size = size,
                       .length = (uint8_t)(code_length + size)};
}

fj_symbol fj_find_symbol(const fj_huffman *table, uint64_t bits) {
    uint32_t next = (uint32_t)(bits >> (64 - FJ_MAX_CODE_BITS));
    for (int length = 1; length <= FJ_MAX_CODE_BITS; length++)
        if (next < table->limits[length]) {
            int code = (int)(next >> (FJ_MAX_CODE_BITS - length));
            return symbol_of(table->symbols[code + table->offsets[length]], length);
        }
    return (fj_symbol){.run = FJ_NO_RUN};
}

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

/* As many symbols as the bits of a look say, but for the bits of the last one's value. */
static fj_skip skip_of(const fj_symbol *looks, int look) {
    fj_skip skip = {0};
    while (skip.length < FJ_LOOK_BITS) {
        fj_symbol symbol = looks[(look << skip.length) & (NUM_LOOKS - 1)];
        int is_end = symbol.run == FJ_END, advance = is_end ? FJ_SKIP_END : symbol.run + 1;
        int is_known = symbol.length && skip.length + symbol.code_length <= FJ_LOOK_BITS;
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
