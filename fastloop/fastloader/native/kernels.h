/* The loops that convert rows, for one instruction set. convert.c includes this file with TARGET,
 * the functions' attribute, and NAME, which makes their names differ.
 *
 * A product and a sum are rounded separately (the build says -ffp-contract=off), so that every
 * instruction set, and torch's own operations, give the same bits.
 */

/* out[k * out_step] = in[k * in_step] * factor + offset */
#define DEFINE_RUN(type, T, LOAD)                                                               \
    TARGET static void NAME(run_##type)(const void *source, int64_t in_step, int64_t count,     \
                                        float factor, float offset, float *out,                 \
                                        int64_t out_step) {                                     \
        const T *in = source;                                                                   \
        if (in_step == 1 && out_step == 1)                                                      \
            for (int64_t k = 0; k < count; k++)                                                 \
                out[k] = LOAD(in[k]) * factor + offset;                                         \
        else                                                                                    \
            for (int64_t k = 0; k < count; k++)                                                 \
                out[k * out_step] = LOAD(in[k * in_step]) * factor + offset;                    \
    }

/* out[k] = in[k] * factor[k] + offset[k] */
#define DEFINE_CYCLE(type, T, LOAD)                                                             \
    TARGET static void NAME(cycle_##type)(const void *source, int64_t count,                    \
                                          const float *restrict factor,                         \
                                          const float *restrict offset, float *restrict out) {  \
        const T *in = source;                                                                   \
        for (int64_t k = 0; k < count; k++)                                                     \
            out[k] = LOAD(in[k]) * factor[k] + offset[k];                                       \
    }

/* Three channels of neighbouring items into three planes. */
#define DEFINE_SPLIT(type, T, LOAD)                                                             \
    TARGET static void NAME(split_##type)(const void *source, int64_t pixels, const float *factor, \
                                          const float *offset, float *out, int64_t plane) {     \
        const T *restrict in = source;                                                          \
        float *restrict a = out, *restrict b = out + plane, *restrict c = out + 2 * plane;      \
        const float f0 = factor[0], f1 = factor[1], f2 = factor[2];                             \
        const float o0 = offset[0], o1 = offset[1], o2 = offset[2];                             \
        for (int64_t k = 0; k < pixels; k++) {                                                  \
            a[k] = LOAD(in[3 * k]) * f0 + o0;                                                   \
            b[k] = LOAD(in[3 * k + 1]) * f1 + o1;                                               \
            c[k] = LOAD(in[3 * k + 2]) * f2 + o2;                                               \
        }                                                                                       \
    }

/* Integers that keep their values. */
#define DEFINE_WIDEN(type, T, LOAD)                                                             \
    TARGET static void NAME(widen_##type)(const void *source, int64_t count, int width,         \
                                          void *out) {                                          \
        const T *in = source;                                                                   \
        if (width == 8)                                                                         \
            for (int64_t k = 0; k < count; k++)                                                 \
                ((int64_t *)out)[k] = (int64_t)in[k];                                           \
        else                                                                                    \
            for (int64_t k = 0; k < count; k++)                                                 \
                ((int32_t *)out)[k] = (int32_t)in[k];                                           \
    }

#define AS_FLOAT(value) ((float)(value))
#define FOR_INTEGERS(DEFINE)                                                                    \
    DEFINE(u8, uint8_t, AS_FLOAT)                                                               \
    DEFINE(i8, int8_t, AS_FLOAT)                                                                \
    DEFINE(u16, uint16_t, AS_FLOAT)                                                             \
    DEFINE(i16, int16_t, AS_FLOAT)                                                              \
    DEFINE(u32, uint32_t, AS_FLOAT)                                                             \
    DEFINE(i32, int32_t, AS_FLOAT)                                                              \
    DEFINE(i64, int64_t, AS_FLOAT)
#define FOR_TYPES(DEFINE)                                                                       \
    FOR_INTEGERS(DEFINE)                                                                        \
    DEFINE(f16, uint16_t, NAME(half_to_float))                                                  \
    DEFINE(bf16, uint16_t, bfloat_to_float)                                                     \
    DEFINE(f32, float, AS_FLOAT)                                                                \
    DEFINE(f64, double, AS_FLOAT)

TARGET static inline float NAME(half_to_float)(uint16_t half) {
    /* The exponents' biases, 127 and 15, differ by 112. The product also turns subnormal halves,
     * which are normal as floats, into their values. */
    uint32_t bits = (uint32_t)(half & 0x7fff) << 13, sign = (uint32_t)(half & 0x8000) << 16;
    uint32_t is_special = bits >= (0x7c00u << 13) ? 0x7f800000u : 0; /* infinite, or no number */
    return float_of(bits_of(float_of(bits) * 0x1p112f) | is_special | sign);
}

/* Rounded to the nearest, ties to even. */
TARGET static inline uint16_t NAME(float_to_half)(float value) {
    uint32_t bits = bits_of(value), sign = bits & 0x80000000u, size = bits ^ sign;
    /* subnormal halves are multiples of 2^-24, which is the last bit of 0.5 as a float: adding
     * 0.5 leaves them in the lowest bits of the sum, rounded */
    uint32_t small = bits_of(float_of(size) + 0.5f) - 0x3f000000u;
    /* 112 is taken from the exponent, and half of a last bit added, or a bit less to keep ties
     * even. */
    uint32_t normal = (size - 0x38000000u + 0xfffu + ((size >> 13) & 1)) >> 13;
    uint32_t half = size < 0x38800000u ? small : normal; /* the smallest normal half, 2^-14 */
    half = size >= 0x477ff000u ? 0x7c00u : half; /* 65,520 and more: infinite */
    half = size > 0x7f800000u ? 0x7e00u : half; /* a NaN */
    return (uint16_t)(half | sign >> 16);
}

FOR_TYPES(DEFINE_RUN)
FOR_TYPES(DEFINE_CYCLE)
FOR_TYPES(DEFINE_SPLIT)
FOR_INTEGERS(DEFINE_WIDEN)

TARGET static void NAME(narrow)(const float *in, int64_t count, fl_type type, uint16_t *out,
                                int64_t step) {
    /* The loops with a constant step can be vectorized. */
    if (type == FL_F16 && step == 1)
        for (int64_t k = 0; k < count; k++)
            out[k] = NAME(float_to_half)(in[k]);
    else if (type == FL_BF16 && step == 1)
        for (int64_t k = 0; k < count; k++)
            out[k] = float_to_bfloat(in[k]);
    else
        for (int64_t k = 0; k < count; k++)
            out[k * step] = type == FL_F16 ? NAME(float_to_half)(in[k]) : float_to_bfloat(in[k]);
}

#define RUN_OF(type, T, LOAD) NAME(run_##type),
#define CYCLE_OF(type, T, LOAD) NAME(cycle_##type),
#define SPLIT_OF(type, T, LOAD) NAME(split_##type),
#define WIDEN_OF(type, T, LOAD) NAME(widen_##type),

static const kernels NAME(kernels) = {
    {NULL, FOR_TYPES(RUN_OF)},
    {NULL, FOR_TYPES(CYCLE_OF)},
    {NULL, FOR_TYPES(SPLIT_OF)},
    {NULL, FOR_INTEGERS(WIDEN_OF)},
    NAME(narrow),
};
