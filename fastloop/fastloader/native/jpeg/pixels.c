/* Writes weighted sums as the numbers of a sample: bytes or floats, in planes or pixel by pixel. */
#include "jpeg.h"

#include <string.h>

enum { SUM_BITS = FJ_WEIGHT_BITS + FJ_LINE_BITS };

static size_t item_nbytes(fj_type type) { return type == FJ_U8 ? 1 : type == FJ_F32 ? 4 : 2; }

size_t fj_sample_nbytes(const fj_crop *crop, const fj_format *format) {
    return 3 * (size_t)crop->height * (size_t)crop->width * item_nbytes(format->type);
}

/* Rounds to the nearest byte. Weights are not negative and add up to 1, so no sum exceeds 255. */
static inline uint8_t as_byte(int32_t sum) {
    return (uint8_t)((sum + (1 << (SUM_BITS - 1))) >> SUM_BITS);
}

/* Rounds to the nearest, ties to even, as torch does. No float here is infinite or a NaN. */
static inline uint16_t as_bfloat16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return (uint16_t)((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* Defines a function that writes one channel, which has every fourth sum, to neighbouring numbers
 * of a plane or, if is_interleaved, to every third number. The compiler can vectorize both loops,
 * as each has a constant step. */
#define DEFINE_CHANNEL(name, T, CONVERT)                                                    \
    ALWAYS_INLINE void write_##name(const int32_t *restrict sums, int count, float factor,  \
                                    float offset, T *restrict out, int is_interleaved) {    \
        (void)factor, (void)offset;                                                         \
        if (is_interleaved)                                                                 \
            for (int k = 0; k < count; k++)                                                 \
                out[3 * k] = CONVERT(sums[4 * k]);                                          \
        else                                                                                \
            for (int k = 0; k < count; k++)                                                 \
                out[k] = CONVERT(sums[4 * k]);                                              \
    }

#define AS_FLOAT(sum) ((float)(sum)*factor + offset)
#define AS_BFLOAT16(sum) as_bfloat16((float)(sum)*factor + offset)
DEFINE_CHANNEL(bytes, uint8_t, as_byte)
DEFINE_CHANNEL(floats, float, AS_FLOAT)
DEFINE_CHANNEL(bfloats, uint16_t, AS_BFLOAT16)

/* It is inlined into two callers, which are compiled for different instruction sets. */
ALWAYS_INLINE void write_row(const fj_format *format, const fj_crop *crop, int row,
                             const int32_t *sums, char *sample) {
    size_t plane = (size_t)crop->height * (size_t)crop->width, width = (size_t)crop->width;
    int is_interleaved = format->channels_last;
    for (size_t channel = 0; channel < 3; channel++) {
        size_t place = format->channels_last ? 3 * width * (size_t)row + channel
                                             : plane * channel + width * (size_t)row;
        char *out = sample + place * item_nbytes(format->type);
        /* The sums' unit is a power of two: this product is exact. */
        float factor = format->factor[channel] * (1.0f / (1 << SUM_BITS));
        float offset = format->offset[channel];
        switch (format->type) {
            case FJ_U8:
                write_bytes(sums + channel, crop->width, 0, 0, (uint8_t *)out,
                            is_interleaved);
                break;
            case FJ_F32:
                write_floats(sums + channel, crop->width, factor, offset, (float *)out,
                             is_interleaved);
                break;
            case FJ_BF16:
                write_bfloats(sums + channel, crop->width, factor, offset, (uint16_t *)out,
                              is_interleaved);
                break;
        }
    }
}

#if defined(__x86_64__)
/* The same function for wider vectors. "avx2" does not include FMA, so the bits are the same. */
__attribute__((target("avx2"))) static void write_row_wide(const fj_format *format,
                                                           const fj_crop *crop, int row,
                                                           const int32_t *sums, char *sample) {
    write_row(format, crop, row, sums, sample);
}
#endif

void fj_write_row(const fj_format *format, const fj_crop *crop, int row, const int32_t *sums,
                  char *sample) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) {
        write_row_wide(format, crop, row, sums, sample);
        return;
    }
#endif
    write_row(format, crop, row, sums, sample);
}
