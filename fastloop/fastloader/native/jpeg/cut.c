/* The cut of an image, drawn from a key as torchvision's RandomResizedCrop and CenterCrop draw
 * it. crops.py computes the same numbers. */
#include "../splitmix.h"
#include "jpeg.h"

#include <math.h>

/* torchvision tries 10 times. Each draw has a number of its own, so that a flip does not depend
 * on how many attempts there were. */
enum { ATTEMPTS = 10, DRAWS_PER_ATTEMPT = 4, FLIP_DRAW = ATTEMPTS * DRAWS_PER_ATTEMPT };

/* Returns a number of [0, 1): the upper 53 bits, a double's precision, of output `number` of
 * splitmix64, begun with the key. */
static double draw(uint64_t key, int number) {
    return (double)(splitmix64(key, (uint64_t)number) >> 11) * 0x1p-53;
}

/* Returns an integer of [0, limit). */
static int draw_integer(uint64_t key, int number, int limit) {
    return (int)(draw(key, number) * limit);
}

/* Returns a part of an axis that becomes the whole sample. */
static fj_axis resize_from(int start, int length, int resized) {
    return (fj_axis){start, length, resized, 0, resized};
}

/* If no attempt fits: the largest part in the middle with a ratio that is allowed. */
static void cut_middle(const fj_crop *crop, int height, int width, fj_cut *cut) {
    double ratio = (double)width / height;
    int h = height, w = width;
    if (ratio < crop->min_ratio)
        h = (int)nearbyint(width / crop->min_ratio);
    else if (ratio > crop->max_ratio)
        w = (int)nearbyint(height * crop->max_ratio);
    /* An image of extreme sides could round to 0 pixels. */
    h = h < 1 ? 1 : h > height ? height : h;
    w = w < 1 ? 1 : w > width ? width : w;
    cut->rows = resize_from((height - h) / 2, h, crop->height);
    cut->columns = resize_from((width - w) / 2, w, crop->width);
}

static void cut_at_random(const fj_crop *crop, uint64_t key, int height, int width, fj_cut *cut) {
    double area = (double)height * width;
    double low = log(crop->min_ratio), high = log(crop->max_ratio);
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        int number = attempt * DRAWS_PER_ATTEMPT;
        double share = crop->min_area + (crop->max_area - crop->min_area) * draw(key, number);
        double ratio = exp(low + (high - low) * draw(key, number + 1));
        double w = nearbyint(sqrt(area * share * ratio)), h = nearbyint(sqrt(area * share / ratio));
        /* Compared as doubles, which may be too large for an int. */
        if (!(w >= 1 && w <= width && h >= 1 && h <= height))
            continue;
        int top = draw_integer(key, number + 2, height - (int)h + 1);
        int left = draw_integer(key, number + 3, width - (int)w + 1);
        cut->rows = resize_from(top, (int)h, crop->height);
        cut->columns = resize_from(left, (int)w, crop->width);
        return;
    }
    cut_middle(crop, height, width, cut);
}

/* Returns `count` pixels in the middle of an axis that is resized to `resized` pixels. */
static fj_axis cut_center(int length, int resized, int count) {
    return (fj_axis){0, length, resized, (int)nearbyint((resized - count) / 2.0), count};
}

/* Resizes the shorter side to shorter_side, and the other by the same ratio, rounded down as
 * torchvision's Resize does. */
static void cut_the_center(const fj_crop *crop, int height, int width, fj_cut *cut) {
    int64_t side = crop->shorter_side, shorter = height < width ? height : width;
    int rows = (int)(side * height / shorter), columns = (int)(side * width / shorter);
    cut->rows = cut_center(height, rows, crop->height);
    cut->columns = cut_center(width, columns, crop->width);
}

fj_cut fj_draw_cut(const fj_crop *crop, uint64_t key, int height, int width) {
    fj_cut cut = {.is_flipped = draw(key, FLIP_DRAW) < crop->flip};
    if (crop->kind == FJ_RANDOM_RESIZED_CROP)
        cut_at_random(crop, key, height, width, &cut);
    else
        cut_the_center(crop, height, width, &cut);
    return cut;
}
