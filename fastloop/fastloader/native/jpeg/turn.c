/* Images that EXIF's orientation turns or mirrors: computes which part of the stored image a crop
 * needs, and writes its pixels in the orientation in which they are shown. */
#include "turn.h"

fj_turn fj_turn_of(int orientation) {
    /* Exif 2.3, 4.6.4, Orientation: 5 to 8 exchange rows and columns. */
    return (fj_turn){
        .is_transposed = orientation >= 5,
        .are_rows_reversed = orientation == 3 || orientation == 4 || orientation >= 7,
        .are_columns_reversed = orientation == 2 || orientation == 3 || orientation == 6 ||
                                orientation == 7,
    };
}

/* Returns the same part, counted from the other end of an axis of `length` pixels. */
static fj_axis reverse(fj_axis axis, int length) {
    axis.start = length - axis.start - axis.length;
    axis.first = axis.resized - axis.first - axis.count;
    return axis;
}

fj_cut fj_stored_cut(const fj_turn *turn, const fj_cut *shown, int height, int width) {
    fj_axis rows = turn->are_rows_reversed ? reverse(shown->rows, height) : shown->rows;
    fj_axis columns = turn->are_columns_reversed ? reverse(shown->columns, width) : shown->columns;
    return turn->is_transposed ? (fj_cut){columns, rows, 0} : (fj_cut){rows, columns, 0};
}

fj_crop fj_stored_crop(const fj_turn *turn, const fj_crop *shown) {
    fj_crop crop = *shown;
    crop.height = turn->is_transposed ? shown->width : shown->height;
    crop.width = turn->is_transposed ? shown->height : shown->width;
    return crop;
}

/* ---- the pixels of a sample ---- */

/* Strides of the three axes, in elements. */
typedef struct {
    ptrdiff_t channels, rows, columns;
} steps;

/* Returns the steps of a sample of this crop. */
static steps steps_of(const fj_format *format, const fj_crop *crop) {
    ptrdiff_t height = crop->height, width = crop->width;
    return format->channels_last ? (steps){1, 3 * width, 3} : (steps){height * width, width, 1};
}

#define DEFINE_COPY(name, T)                                                                       \
    static void copy_##name(const T *from, steps in, T *to, steps out, const fj_crop *crop) {      \
        for (int channel = 0; channel < 3; channel++)                                              \
            for (int row = 0; row < crop->height; row++)                                           \
                for (int column = 0; column < crop->width; column++)                               \
                    to[channel * out.channels + row * out.rows + column * out.columns] =           \
                        from[channel * in.channels + row * in.rows + column * in.columns];         \
    }
DEFINE_COPY(bytes, uint8_t)
DEFINE_COPY(bfloats, uint16_t)
DEFINE_COPY(floats, float)

void fj_turn_sample(const fj_turn *turn, int is_flipped, const fj_format *format,
                    const fj_crop *crop, const void *stored, void *sample) {
    fj_crop before = fj_stored_crop(turn, crop);
    steps in = steps_of(format, &before), out = steps_of(format, crop);
    if (turn->is_transposed)
        in = (steps){in.channels, in.columns, in.rows};
    /* Reading from the other end, by a negative step, reverses an axis. The flip is done here,
     * too: reversed twice is not reversed. */
    ptrdiff_t first = 0;
    if (turn->are_rows_reversed) {
        first += (crop->height - 1) * in.rows;
        in.rows = -in.rows;
    }
    if (turn->are_columns_reversed != is_flipped) {
        first += (crop->width - 1) * in.columns;
        in.columns = -in.columns;
    }
    switch (format->type) {
        case FJ_U8:
            copy_bytes((const uint8_t *)stored + first, in, sample, out, crop);
            break;
        case FJ_F32:
            copy_floats((const float *)stored + first, in, sample, out, crop);
            break;
        case FJ_BF16:
            copy_bfloats((const uint16_t *)stored + first, in, sample, out, crop);
            break;
    }
}
