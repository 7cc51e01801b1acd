/* Converts rows to another type: scales and shifts their items and reorders the channels, in one
 * pass. Every way of converting gives the same bits, see kernels.h. */
#include "core.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* CYCLE: length to which prepare_cycle() repeats the factors, in floats; 768 is a multiple of 3 and
 * of the width of a vector. TILE: floats that are converted on the stack before they are narrowed,
 * or stored by non-temporal stores, which bypass the cache; 4 KiB stay in the first-level cache. */
enum { CYCLE = 768, TILE = 1024 };

typedef struct {
    void (*run[FL_NUM_TYPES])(const void *, int64_t, int64_t, float, float, float *, int64_t);
    void (*cycle[FL_NUM_TYPES])(const void *, int64_t, const float *, const float *, float *);
    void (*split[FL_NUM_TYPES])(const void *, int64_t, const float *, const float *, float *, int64_t);
    void (*widen[FL_NUM_TYPES])(const void *, int64_t, int, void *);
    void (*narrow)(const float *, int64_t, fl_type, uint16_t *, int64_t);
} kernels;

/* Bits as a float and back. memcpy() is a register move here; a cast of pointers would break C's
 * rules of aliasing. */
FL_ALWAYS_INLINE float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

FL_ALWAYS_INLINE uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

/* bfloat16 is the upper half of a float. */
FL_ALWAYS_INLINE float bfloat_to_float(uint16_t value) { return float_of((uint32_t)value << 16); }

/* Rounds to the nearest, ties to even, as torch does. NaN is a case of its own, as rounding could
 * turn it into infinity. */
FL_ALWAYS_INLINE uint16_t float_to_bfloat(float value) {
    uint32_t bits = bits_of(value);
    uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded);
}

#define TARGET
#define NAME(name) name##_any
#include "kernels.h"
#undef TARGET
#undef NAME

#if defined(__x86_64__)
#define TARGET __attribute__((target("avx2")))
#define NAME(name) name##_avx2
#include "kernels.h"
#undef TARGET
#undef NAME
#endif

/* The loops, chosen once for the processor that the process runs on. */
static const kernels *chosen = &kernels_any;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void choose_kernels(void) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2"))
        chosen = &kernels_avx2;
#endif
}

/* Repeats the factors to some length, for channels that are the last dimension before and after
 * the conversion: a loop over three channels would be too short to be vectorized. Returns 0 if
 * there is no memory. */
static int prepare_cycle(fl_column *column) {
    int64_t channels = column->channels;
    /* At least one repetition, even for more than CYCLE channels. */
    int64_t length = channels * (CYCLE / channels > 1 ? CYCLE / channels : 1);
    float *cycle = malloc((size_t)(2 * length) * sizeof *cycle);
    if (!cycle)
        return 0;
    for (int64_t k = 0; k < length; k++) {
        cycle[k] = column->factor[k % channels];
        cycle[length + k] = column->offset[k % channels];
    }
    column->cycle = cycle;
    column->cycle_length = length;
    return 1;
}

/* Called once for a column, before any row is converted: several threads convert rows, and only
 * read the column. */
int fl_prepare_conversion(fl_column *column) {
    pthread_once(&once, choose_kernels);
    int keeps_layout = column->source_hwc && column->target_hwc;
    return !(keeps_layout && column->num_factors > 1) || prepare_cycle(column);
}

void fl_release_conversion(fl_column *column) { free(column->cycle); }

/* Returns the bytes of one item. */
static int64_t size_of(fl_type type) {
    static const int64_t sizes[FL_NUM_TYPES] = {1, 1, 1, 2, 2, 4, 4, 8, 2, 2, 4, 8};
    return sizes[type];
}

/* Delivers the floats of a tile, narrowed to 16 bits or stored by non-temporal stores. */
static void put_tile(const float *tile, int64_t count, fl_type target, char *out, int64_t out_step) {
    if (target == FL_F32)
        fl_copy_bypassing(out, (const char *)tile, (size_t)count * sizeof *tile);
    else
        chosen->narrow(tile, count, target, (uint16_t *)out, out_step);
}

/* Converts the items of one channel, or all items if they share one factor. `in_step` and
 * `out_step` are in items. */
static void convert_run(const fl_column *column, const char *in, int64_t in_step, int64_t count,
                        int64_t channel, char *out, int64_t out_step, int bypasses) {
    int64_t which = column->num_factors > 1 ? channel : 0;
    float factor = column->factor[which], offset = column->offset[which], tile[TILE];
    /* Floats that are stored through the cache need no tile. Floats with a step are always stored
     * that way, because a non-temporal store writes whole lines of the cache. */
    if (column->target == FL_F32 && !(bypasses && out_step == 1)) {
        chosen->run[column->source](in, in_step, count, factor, offset, (float *)out, out_step);
        return;
    }
    int64_t in_size = in_step * size_of(column->source);
    int64_t out_size = out_step * size_of(column->target);
    for (int64_t start = 0; start < count; start += TILE) {
        int64_t part = count - start < TILE ? count - start : TILE;
        const char *from = in + start * in_size;
        chosen->run[column->source](from, in_step, part, factor, offset, tile, 1);
        put_tile(tile, part, column->target, out + start * out_size, out_step);
    }
}

/* Converts items with the channel as the last dimension, one cycle of factors after the other. */
static void convert_cycles(const fl_column *column, const char *in, char *out, int bypasses) {
    int64_t count = column->channels * column->pixels, length = column->cycle_length;
    const float *factor = column->cycle, *offset = factor + length;
    int is_direct = column->target == FL_F32 && !bypasses;
    for (int64_t start = 0; start < count; start += length) {
        int64_t rest = count - start < length ? count - start : length;
        /* A cycle is longer than a tile if there are more than TILE channels. */
        for (int64_t begin = 0; begin < rest; begin += TILE) {
            int64_t part = rest - begin < TILE ? rest - begin : TILE;
            const char *from = in + (start + begin) * size_of(column->source);
            char *to = out + (start + begin) * size_of(column->target);
            float tile[TILE], *floats = is_direct ? (float *)to : tile;
            chosen->cycle[column->source](from, part, factor + begin, offset + begin, floats);
            if (!is_direct)
                put_tile(tile, part, column->target, to, 1);
        }
    }
}

/* Converts three channels that are stored side by side into planes of floats: one pass over the
 * pixels instead of three. */
static void convert_planes(const fl_column *column, const char *in, float *out, int bypasses) {
    int is_shared = column->num_factors == 1;
    const float *f = column->factor, *o = column->offset;
    const float factor[] = {f[0], f[is_shared ? 0 : 1], f[is_shared ? 0 : 2]};
    const float offset[] = {o[0], o[is_shared ? 0 : 1], o[is_shared ? 0 : 2]};
    int64_t pixels = column->pixels;
    if (!bypasses) {
        chosen->split[column->source](in, pixels, factor, offset, out, pixels);
        return;
    }
    float tiles[3 * TILE];
    for (int64_t start = 0; start < pixels; start += TILE) {
        int64_t part = pixels - start < TILE ? pixels - start : TILE;
        const char *from = in + 3 * start * size_of(column->source);
        chosen->split[column->source](from, part, factor, offset, tiles, TILE);
        for (int plane = 0; plane < 3; plane++)
            put_tile(tiles + plane * TILE, part, FL_F32, (char *)(out + plane * pixels + start), 1);
    }
}

/* The general case: any number of channels, one after the other. */
static void convert_channels(const fl_column *column, const char *in, char *out, int bypasses) {
    int64_t channels = column->channels, pixels = column->pixels;
    int64_t in_step = column->source_hwc ? channels : 1;
    int64_t out_step = column->target_hwc ? channels : 1;
    for (int64_t channel = 0; channel < channels; channel++) {
        int64_t from = channel * (column->source_hwc ? 1 : pixels) * size_of(column->source);
        int64_t to = channel * (column->target_hwc ? 1 : pixels) * size_of(column->target);
        convert_run(column, in + from, in_step, pixels, channel, out + to, out_step, bypasses);
    }
}

/* Converts a row in the fastest way that its layouts allow. */
void fl_convert_row(const fl_column *column, const char *row, char *out, int bypasses) {
    int64_t count = column->channels * column->pixels;
    if (!column->num_factors)
        chosen->widen[column->source](row, count, (int)size_of(column->target), out);
    else if (column->source_hwc == column->target_hwc && column->num_factors == 1)
        convert_run(column, row, 1, count, 0, out, 1, bypasses);
    else if (column->cycle)
        convert_cycles(column, row, out, bypasses);
    else if (column->source_hwc && column->channels == 3 && column->target == FL_F32)
        convert_planes(column, row, (float *)out, bypasses);
    else
        convert_channels(column, row, out, bypasses);
}
