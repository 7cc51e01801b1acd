/* Weighted sums in integers: rows first, whose sums are neighbours in memory, then columns. Both
 * ways of computing them have the same bits. */
#include "jpeg.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

enum { CHANNELS = 4, ROUNDING_BITS = FJ_WEIGHT_BITS - FJ_LINE_BITS };

#if defined(__SSE2__)

static __m128i pair_of(const int16_t *weights) {
    return _mm_set1_epi32((int)(((uint32_t)(uint16_t)weights[1] << 16) | (uint16_t)weights[0]));
}

/* 16 sums of two rows' bytes, added to `sums`. */
static inline void add_two_rows(const uint8_t *first, const uint8_t *second, __m128i pair,
                                __m128i sums[4]) {
    const __m128i zero = _mm_setzero_si128();
    __m128i a = _mm_loadu_si128((const __m128i *)first);
    __m128i b = _mm_loadu_si128((const __m128i *)second);
    __m128i low = _mm_unpacklo_epi8(a, b), high = _mm_unpackhi_epi8(a, b);
    sums[0] = _mm_add_epi32(sums[0], _mm_madd_epi16(_mm_unpacklo_epi8(low, zero), pair));
    sums[1] = _mm_add_epi32(sums[1], _mm_madd_epi16(_mm_unpackhi_epi8(low, zero), pair));
    sums[2] = _mm_add_epi32(sums[2], _mm_madd_epi16(_mm_unpacklo_epi8(high, zero), pair));
    sums[3] = _mm_add_epi32(sums[3], _mm_madd_epi16(_mm_unpackhi_epi8(high, zero), pair));
}

void fj_combine_rows(const uint8_t *const *rows, const int16_t *weights, int taps, int count,
                     int16_t *line) {
    const __m128i half = _mm_set1_epi32(1 << (ROUNDING_BITS - 1));
    for (int i = 0; i < count; i += 16) {
        __m128i sums[4] = {half, half, half, half};
        for (int tap = 0; tap < taps; tap += 2)
            add_two_rows(rows[tap] + i, rows[tap + 1] + i, pair_of(weights + tap), sums);
        for (int k = 0; k < 4; k++)
            sums[k] = _mm_srai_epi32(sums[k], ROUNDING_BITS);
        _mm_storeu_si128((__m128i *)(line + i), _mm_packs_epi32(sums[0], sums[1]));
        _mm_storeu_si128((__m128i *)(line + i + 8), _mm_packs_epi32(sums[2], sums[3]));
    }
}

void fj_combine_columns(const fj_weights *weights, const int16_t *line, int32_t *sums) {
    const int16_t *pairs = weights->weights;
    for (int k = 0; k < weights->count; k++) {
        const int16_t *pixels = line + (size_t)(weights->firsts[k] - weights->begin) * CHANNELS;
        __m128i sum = _mm_setzero_si128();
        for (int tap = 0; tap < weights->taps; tap += 2, pairs += 2, pixels += 2 * CHANNELS) {
            __m128i two = _mm_loadu_si128((const __m128i *)pixels);
            __m128i paired = _mm_unpacklo_epi16(two, _mm_srli_si128(two, 8));
            sum = _mm_add_epi32(sum, _mm_madd_epi16(paired, pair_of(pairs)));
        }
        _mm_storeu_si128((__m128i *)(sums + (size_t)k * CHANNELS), sum);
    }
}

#else

void fj_combine_rows(const uint8_t *const *rows, const int16_t *weights, int taps, int count,
                     int16_t *line) {
    for (int i = 0; i < count; i++) {
        int32_t sum = 1 << (ROUNDING_BITS - 1);
        for (int tap = 0; tap < taps; tap++)
            sum += rows[tap][i] * weights[tap];
        line[i] = (int16_t)(sum >> ROUNDING_BITS);
    }
}

void fj_combine_columns(const fj_weights *weights, const int16_t *line, int32_t *sums) {
    const int16_t *own = weights->weights;
    for (int k = 0; k < weights->count; k++, own += weights->taps) {
        const int16_t *pixels = line + (size_t)(weights->firsts[k] - weights->begin) * CHANNELS;
        for (int channel = 0; channel < CHANNELS; channel++) {
            int32_t sum = 0;
            for (int tap = 0; tap < weights->taps; tap++)
                sum += pixels[tap * CHANNELS + channel] * own[tap];
            sums[(size_t)k * CHANNELS + channel] = sum;
        }
    }
}

#endif
