/* The weights of Pillow's antialiased bilinear filter (precompute_coeffs in its Resample.c): a
 * triangle as wide as two pixels of the sample, or of the image if the sample is the larger one. */
#include "jpeg.h"

#include <math.h>
#include <stdlib.h>

/* The pixels under the triangle of a resized pixel, counted from the start of the cut. */
typedef struct {
    double center, scale; /* scale: half of the triangle's width, in pixels of the image */
    int first, count;
} triangle;

/* Returns the triangle of a resized pixel: the filter is stretched if the image becomes smaller,
 * so that each of its pixels counts. */
static triangle place_triangle(const fj_axis *axis, int pixel) {
    double step = (double)axis->length / axis->resized;
    triangle place = {.center = (pixel + 0.5) * step, .scale = step < 1 ? 1 : step};
    /* Rounded as Pillow rounds. */
    int first = (int)(place.center - place.scale + 0.5);
    int end = (int)(place.center + place.scale + 0.5);
    place.first = first < 0 ? 0 : first;
    place.count = (end > axis->length ? axis->length : end) - place.first;
    return place;
}

/* Returns the height of the triangle above the middle of a pixel. */
static double height_at(const triangle *place, int tap) {
    double distance = fabs((tap + place->first - place->center + 0.5) / place->scale);
    return distance < 1 ? 1 - distance : 0;
}

/* Sets the weights, in 1 / (1 << FJ_WEIGHT_BITS). Not each weight is rounded but each running
 * sum, so that all weights together are exactly 1 and a plain area keeps its colour. Taps beyond
 * the triangle get 0. */
static void fill_weights(const triangle *place, int taps, int16_t *weights) {
    double sum = 0, running = 0;
    int before = 0;
    for (int tap = 0; tap < place->count; tap++)
        sum += height_at(place, tap);
    for (int tap = 0; tap < taps; tap++) {
        if (tap < place->count)
            running += height_at(place, tap);
        int rounded = (int)(running / sum * (1 << FJ_WEIGHT_BITS) + 0.5);
        weights[tap] = (int16_t)(rounded - before);
        before = rounded;
    }
}

/* Returns 0 if there is no memory. */
static int reserve(fj_weights *weights, size_t count, size_t taps) {
    if (count * taps <= weights->capacity)
        return 1;
    fj_free_weights(weights);
    weights->firsts = malloc(count * taps * sizeof *weights->firsts);
    weights->weights = malloc(count * taps * sizeof *weights->weights);
    weights->capacity = weights->firsts && weights->weights ? count * taps : 0;
    return weights->capacity > 0;
}

int fj_weigh(fj_weights *weights, const fj_axis *axis, int is_flipped) {
    double step = (double)axis->length / axis->resized;
    int taps = (int)ceil(2 * (step < 1 ? 1 : step)); /* no triangle has more pixels under it */
    /* resize.c combines taps in pairs. */
    taps += taps % 2;
    if (!reserve(weights, (size_t)axis->count, (size_t)taps))
        return 0;
    weights->count = axis->count;
    weights->taps = taps;
    /* The window is found as the union of all taps' pixels. */
    weights->begin = axis->start + axis->length;
    weights->end = axis->start;
    for (int k = 0; k < axis->count; k++) {
        int pixel = axis->first + (is_flipped ? axis->count - 1 - k : k);
        triangle place = place_triangle(axis, pixel);
        int first = axis->start + place.first, end = first + place.count;
        fill_weights(&place, taps, weights->weights + (size_t)k * (size_t)taps);
        weights->firsts[k] = first;
        weights->begin = first < weights->begin ? first : weights->begin;
        weights->end = end > weights->end ? end : weights->end;
    }
    return 1;
}

void fj_free_weights(fj_weights *weights) {
    free(weights->firsts);
    free(weights->weights);
    *weights = (fj_weights){0};
}
