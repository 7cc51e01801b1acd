/* Orders of samples, computed as they are read: an epoch begins before its order is complete.
 *
 * FL_RANDPERM is torch.randperm's order for a generator with this seed: a Mersenne Twister
 * (MT19937, Matsumoto and Nishimura, 1998, seeded as in their version of 2002) and a Fisher-Yates
 * shuffle from the front, so that the first indices are final first. FL_FEISTEL is feistel.py's
 * network over tables that torch has drawn.
 *
 * No function here takes a lock: only one thread at a time may read or feed an order. A stream sees
 * to that, see stream_blocks.c.
 */
#include "core.h"

#include <stdlib.h>
#include <string.h>

/* WORDS and MIDDLE are n and m of MT19937. DRAWN_AT_ONCE: swaps that are prepared together,
 * their partners prefetched. */
enum { WORDS = 624, MIDDLE = 397, DRAWN_AT_ONCE = 64 };

/* The first word is the seed, and each further one follows from the one before. `used` makes the
 * first draw renew them. */
static void seed_twister(fl_twister *twister, uint32_t seed) {
    uint32_t *state = twister->state;
    state[0] = seed;
    for (uint32_t k = 1; k < WORDS; k++)
        state[k] = 1812433253u * (state[k - 1] ^ (state[k - 1] >> 30)) + k;
    twister->used = WORDS;
}

/* One step of the recurrence: the upper bit of one word and the lower 31 bits of the next are
 * multiplied by the matrix with the last row 0x9908b0df, and added to the word `MIDDLE` later. */
static uint32_t twist(uint32_t upper, uint32_t lower, uint32_t other) {
    uint32_t mixed = (upper & 0x80000000u) | (lower & 0x7fffffffu);
    return other ^ (mixed >> 1) ^ (mixed & 1 ? 0x9908b0dfu : 0);
}

/* Computes the next WORDS words of the state. */
static void renew(fl_twister *twister) {
    uint32_t *state = twister->state;
    int k = 0;
    for (; k < WORDS - MIDDLE; k++)
        state[k] = twist(state[k], state[k + 1], state[k + MIDDLE]);
    for (; k < WORDS - 1; k++)
        state[k] = twist(state[k], state[k + 1], state[k + MIDDLE - WORDS]);
    state[k] = twist(state[k], state[0], state[k + MIDDLE - WORDS]);
    twister->used = 0;
}

/* Returns the next 32 random bits: a word of the state, tempered. */
static uint32_t draw(fl_twister *twister) {
    if (twister->used == WORDS)
        renew(twister);
    uint32_t bits = twister->state[twister->used++];
    bits ^= bits >> 11;
    bits ^= bits << 7 & 0x9d2c5680u;
    bits ^= bits << 15 & 0xefc60000u;
    return bits ^ bits >> 18;
}

/* Sets the identity, of which draw_permutation() makes a permutation step by step. */
static void begin_permutation(fl_order *order) {
    for (int64_t k = 0; k < order->num_samples; k++)
        order->permutation[k] = (int32_t)k;
    seed_twister(&order->twister, order->seed);
    order->is_begun = 1;
}

/* Makes the first `stop` indices of the permutation final. Index k is swapped with a random one
 * of itself and those after it, so that no later swap touches it. */
static void draw_permutation(fl_order *order, int64_t stop) {
    if (!order->is_begun)
        begin_permutation(order);
    int32_t *permutation = order->permutation;
    int64_t count = order->num_samples, partners[DRAWN_AT_ONCE];
    while (order->drawn < stop) {
        int64_t start = order->drawn;
        int64_t last = stop - start < DRAWN_AT_ONCE ? stop : start + DRAWN_AT_ONCE;
        /* torch draws no number for the last index, which has no other to be swapped with. */
        int64_t swapped = last < count - 1 ? last : count - 1;
        /* The partners' places are random: each is a miss of the cache, and all are underway at
         * once. */
        for (int64_t k = start; k < swapped; k++) {
            partners[k - start] = k + draw(&order->twister) % (uint32_t)(count - k);
            __builtin_prefetch(permutation + partners[k - start], 1, 3);
        }
        for (int64_t k = start; k < swapped; k++) {
            int32_t index = permutation[k];
            permutation[k] = permutation[partners[k - start]];
            permutation[partners[k - start]] = index;
        }
        order->drawn = last;
    }
}

/* Returns the place of a position in the square of num_rows x num_columns: a Feistel network of
 * four rounds. In each round one half is shifted by a number that the other half looks up. */
static int64_t encrypt(const fl_order *order, uint64_t position) {
    uint32_t rows = order->num_rows, columns = order->num_columns;
    uint32_t left = (uint32_t)(position / columns), right = (uint32_t)(position % columns);
    for (int round = 0; round < 4; round++) {
        uint32_t width = round % 2 ? columns : rows;
        uint32_t sum = order->tables[round][right] + left, reduced = sum - width;
        left = right;
        /* This is sum % width, as sum < 2 * width: a negative difference is a huge unsigned
         * number. */
        right = reduced < sum ? reduced : sum;
    }
    return (int64_t)((uint64_t)left * columns + right);
}

/* Writes the indices of this rank's positions. */
static void read_feistel(const fl_order *order, int64_t start, int64_t count, int64_t *scratch) {
    for (int64_t k = 0; k < count; k++) {
        int64_t position = (start + k) * order->world_size + order->rank;
        if (position >= order->num_samples)
            position %= order->num_samples;
        int64_t index = encrypt(order, (uint64_t)position);
        /* Cycle walking (Black and Rogaway, 2002): the square has a few more places than there
         * are samples. Encrypting again ends, as the cycle leads back to a position that is a
         * sample. */
        while (index >= order->num_samples)
            index = encrypt(order, (uint64_t)index);
        scratch[k] = index;
    }
}

/* Writes this rank's every world_size-th index of an order that is sequential or a permutation.
 * Positions beyond the end begin again, so that all ranks get equally many indices. */
static void read_share(const fl_order *order, int64_t start, int64_t count, int64_t *scratch) {
    for (int64_t k = 0; k < count; k++) {
        int64_t position = (start + k) * order->world_size + order->rank;
        if (position >= order->num_samples)
            position %= order->num_samples;
        scratch[k] = order->kind == FL_RANDPERM ? order->permutation[position] : position;
    }
}

int fl_open_order(fl_order *order, fl_pool *pool) {
    if (order->kind != FL_RANDPERM)
        return 1;
    /* One number more than there are samples: malloc(0) may return NULL, which would mean no
     * memory. */
    size_t nbytes = (size_t)(order->num_samples + 1) * sizeof *order->permutation;
    if (pool)
        order->block = fl_take_block(pool, nbytes);
    order->permutation = order->block ? (int32_t *)order->block->memory : malloc(nbytes);
    return order->permutation != NULL;
}

void fl_close_order(fl_order *order) {
    if (order->block)
        fl_release_block(order->block);
    else
        free(order->permutation);
    free(order->fed);
}

fl_indices fl_read_order(fl_order *order, int64_t start, int64_t count, int64_t *scratch) {
    fl_indices drawn = {scratch, 8};
    switch (order->kind) {
        case FL_ARRAY:
            return fl_skip(order->array, start);
        case FL_RANDPERM: {
            /* The position of the last index, and one: of a share of several ranks, the indices
             * between its own ones must be final too. */
            int64_t stop = (start + count - 1) * order->world_size + order->rank + 1;
            draw_permutation(order, stop < order->num_samples ? stop : order->num_samples);
            /* One rank reads the permutation in place. Its final part does not change any more. */
            if (order->world_size == 1)
                return (fl_indices){order->permutation + start, 4};
            read_share(order, start, count, scratch);
            return drawn;
        }
        case FL_SEQUENTIAL:
            read_share(order, start, count, scratch);
            return drawn;
        case FL_FEISTEL:
            read_feistel(order, start, count, scratch);
            return drawn;
        case FL_FED:
            memcpy(scratch, order->fed + order->fed_begin, (size_t)count * sizeof *scratch);
            order->fed_begin += count;
            return drawn;
    }
    return drawn;
}

int fl_feed_order(fl_order *order, fl_indices indices, int64_t count) {
    int64_t unread = order->length - order->fed_begin;
    if (order->length + count > order->fed_capacity) { /* also drops the indices that have been read */
        int64_t capacity = 2 * (unread + count);
        int64_t *fed = malloc((size_t)capacity * sizeof *fed);
        if (!fed)
            return 0;
        if (unread)
            memcpy(fed, order->fed + order->fed_begin, (size_t)unread * sizeof *fed);
        free(order->fed);
        order->fed = fed;
        order->fed_capacity = capacity;
        order->fed_begin = 0;
        order->length = unread;
    }
    for (int64_t k = 0; k < count; k++)
        order->fed[order->length + k] = fl_index(indices, k);
    order->length += count;
    return 1;
}
