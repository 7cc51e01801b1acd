/* Resizes by weighted sums of pixels, in integers: of rows first, because neighbours in a row's
 * sums are neighbours in memory, then of columns. Integers are exact, so all ways of computing the
 * sums give the same bits. */
#include "jpeg.h"

#include <string.h>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

enum { CHANNELS = 4, ROUNDING_BITS = FJ_WEIGHT_BITS - FJ_LINE_BITS };

/* Returns the first pixel of the line that contributes to pixel k of the sample. */
static const int16_t *pixels_of(const fj_weights *weights, const int16_t *line, int k) {
    return line + (size_t)(weights->firsts[k] - weights->begin) * CHANNELS;
}

/* Returns the weights of pixel k of the sample. */
static const int16_t *weights_of(const fj_weights *weights, int k) {
    return weights->weights + (size_t)k * (size_t)weights->taps;
}

#if defined(__SSE2__)

/* Two weights as one number: _mm_madd_epi16 multiplies pairs of 16-bit numbers and adds each
 * pair's products, so that two taps take one instruction. This is why fj_weights.taps is even. */
static inline int32_t pair_of(const int16_t *weights) {
    int32_t pair;
    memcpy(&pair, weights, sizeof pair);
    return pair;
}

/* Adds the products of 16 bytes of two rows to `sums`. Bytes of both rows are interleaved, and
 * widened by zeros, to be neighbours for _mm_madd_epi16. */
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

/* See fj_combine_rows(): 16 numbers of the line at a time. `half` rounds to the nearest. */
static void combine_rows(const uint8_t *const *rows, const int16_t *weights, int taps, int count,
                         int16_t *line) {
    const __m128i half = _mm_set1_epi32(1 << (ROUNDING_BITS - 1));
    for (int i = 0; i < count; i += 16) {
        __m128i sums[4] = {half, half, half, half};
        for (int tap = 0; tap < taps; tap += 2)
            add_two_rows(rows[tap] + i, rows[tap + 1] + i, _mm_set1_epi32(pair_of(weights + tap)),
                         sums);
        for (int k = 0; k < 4; k++)
            sums[k] = _mm_srai_epi32(sums[k], ROUNDING_BITS);
        /* Sums fit 16 bits: 255 << FJ_LINE_BITS is 32,640. */
        _mm_storeu_si128((__m128i *)(line + i), _mm_packs_epi32(sums[0], sums[1]));
        _mm_storeu_si128((__m128i *)(line + i + 8), _mm_packs_epi32(sums[2], sums[3]));
    }
}

/* Combines the columns of pixels from `first` on: the four channels of a pixel at once. */
static void combine_columns(const fj_weights *weights, const int16_t *line, int first,
                            int32_t *sums) {
    for (int k = first; k < weights->count; k++) {
        const int16_t *pixels = pixels_of(weights, line, k), *own = weights_of(weights, k);
        __m128i sum = _mm_setzero_si128();
        for (int tap = 0; tap < weights->taps; tap += 2) {
            __m128i two = _mm_loadu_si128((const __m128i *)(pixels + tap * CHANNELS));
            __m128i paired = _mm_unpacklo_epi16(two, _mm_srli_si128(two, 8));
            sum = _mm_add_epi32(sum, _mm_madd_epi16(paired, _mm_set1_epi32(pair_of(own + tap))));
        }
        _mm_storeu_si128((__m128i *)(sums + (size_t)k * CHANNELS), sum);
    }
}

/* ---- the same, twice as much by each instruction ---- */

#define AVX2 __attribute__((target("avx2")))

AVX2 static inline void add_two_wide_rows(const uint8_t *first, const uint8_t *second, __m256i pair,
                                          __m256i sums[4]) {
    const __m256i zero = _mm256_setzero_si256();
    __m256i a = _mm256_loadu_si256((const __m256i *)first);
    __m256i b = _mm256_loadu_si256((const __m256i *)second);
    __m256i low = _mm256_unpacklo_epi8(a, b), high = _mm256_unpackhi_epi8(a, b);
    sums[0] = _mm256_add_epi32(sums[0], _mm256_madd_epi16(_mm256_unpacklo_epi8(low, zero), pair));
    sums[1] = _mm256_add_epi32(sums[1], _mm256_madd_epi16(_mm256_unpackhi_epi8(low, zero), pair));
    sums[2] = _mm256_add_epi32(sums[2], _mm256_madd_epi16(_mm256_unpacklo_epi8(high, zero), pair));
    sums[3] = _mm256_add_epi32(sums[3], _mm256_madd_epi16(_mm256_unpackhi_epi8(high, zero), pair));
}

AVX2 static void combine_wide_rows(const uint8_t *const *rows, const int16_t *weights, int taps,
                                   int count, int16_t *line) {
    const __m256i half = _mm256_set1_epi32(1 << (ROUNDING_BITS - 1));
    for (int i = 0; i < count; i += 32) {
        __m256i sums[4] = {half, half, half, half};
        for (int tap = 0; tap < taps; tap += 2)
            add_two_wide_rows(rows[tap] + i, rows[tap + 1] + i,
                              _mm256_set1_epi32(pair_of(weights + tap)), sums);
        for (int k = 0; k < 4; k++)
            sums[k] = _mm256_srai_epi32(sums[k], ROUNDING_BITS);
        /* 256-bit instructions pack and unpack each half of a register by itself: these two
         * permutations restore the order of the numbers. */
        __m256i a = _mm256_packs_epi32(sums[0], sums[1]), b = _mm256_packs_epi32(sums[2], sums[3]);
        _mm256_storeu_si256((__m256i *)(line + i), _mm256_permute2x128_si256(a, b, 0x20));
        _mm256_storeu_si256((__m256i *)(line + i + 16), _mm256_permute2x128_si256(a, b, 0x31));
    }
}

/* Returns both as the halves of a wide register. */
AVX2 static inline __m256i join(__m128i low, __m128i high) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}

/* Two pixels at a time, one in each half of the registers. An odd last pixel is left to
 * combine_columns(). */
AVX2 static void combine_columns_by_two(const fj_weights *weights, const int16_t *line,
                                        int32_t *sums) {
    const __m128i order = _mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15);
    const __m256i pairs = join(order, order);
    int k = 0;
    for (; k + 1 < weights->count; k += 2) {
        const int16_t *a = pixels_of(weights, line, k), *b = pixels_of(weights, line, k + 1);
        const int16_t *own = weights_of(weights, k), *next = own + weights->taps;
        __m256i sum = _mm256_setzero_si256();
        for (int tap = 0; tap < weights->taps; tap += 2) {
            __m256i two = join(_mm_loadu_si128((const __m128i *)(a + tap * CHANNELS)),
                               _mm_loadu_si128((const __m128i *)(b + tap * CHANNELS)));
            __m256i weight = join(_mm_set1_epi32(pair_of(own + tap)),
                                  _mm_set1_epi32(pair_of(next + tap)));
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_shuffle_epi8(two, pairs), weight));
        }
        _mm256_storeu_si256((__m256i *)(sums + (size_t)k * CHANNELS), sum);
    }
    combine_columns(weights, line, k, sums);
}

/* Returns the number of taps, without the pairs at the end that have weights of 0. */
static int count_taps(const int16_t *weights, int taps) {
    while (taps > 2 && !weights[taps - 1] && !weights[taps - 2])
        taps -= 2;
    return taps;
}

void fj_combine_rows(const uint8_t *const *rows, const int16_t *weights, int taps, int count,
                     int16_t *line) {
    int used = count_taps(weights, taps);
    if (__builtin_cpu_supports("avx2"))
        combine_wide_rows(rows, weights, used, count, line);
    else
        combine_rows(rows, weights, used, count, line);
}

void fj_combine_columns(const fj_weights *weights, const int16_t *line, int32_t *sums) {
    if (__builtin_cpu_supports("avx2"))
        combine_columns_by_two(weights, line, sums);
    else
        combine_columns(weights, line, 0, sums);
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
    for (int k = 0; k < weights->count; k++) {
        const int16_t *pixels = pixels_of(weights, line, k), *own = weights_of(weights, k);
        for (int channel = 0; channel < CHANNELS; channel++) {
            int32_t sum = 0;
            for (int tap = 0; tap < weights->taps; tap++)
                sum += pixels[tap * CHANNELS + channel] * own[tap];
            sums[(size_t)k * CHANNELS + channel] = sum;
        }
    }
}

#endif
