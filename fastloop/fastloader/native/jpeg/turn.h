/* What decode.c knows of images that are shown turned. */
#ifndef FASTLOOP_JPEG_TURN_H
#define FASTLOOP_JPEG_TURN_H

#include "jpeg.h"

/* From the stored image to the one that is shown: transposed first, then reversed. */
typedef struct {
    int is_transposed, are_rows_reversed, are_columns_reversed; /* 0 or 1 */
} fj_turn;

fj_turn fj_turn_of(int orientation);
/* What the cut of the shown image, of this size, is of the stored one; it is not flipped. */
fj_cut fj_stored_cut(const fj_turn *turn, const fj_cut *shown, int height, int width);
/* The crop whose samples are those of the stored image. */
fj_crop fj_stored_crop(const fj_turn *turn, const fj_crop *shown);
/* Write the sample of the stored image as the one of the shown image. */
void fj_turn_sample(const fj_turn *turn, int is_flipped, const fj_format *format,
                    const fj_crop *crop, const void *stored, void *sample);

#endif
