/* Samples of images that EXIF's orientation turns or mirrors, for decode.c. */
#ifndef FASTLOOP_JPEG_TURN_H
#define FASTLOOP_JPEG_TURN_H

#include "jpeg.h"

/* How the stored image becomes the one that is shown: transposed first, then reversed. */
typedef struct {
    int is_transposed, are_rows_reversed, are_columns_reversed; /* 0 or 1 */
} fj_turn;

/* Returns the turn of an orientation of EXIF, 1 to 8. */
fj_turn fj_turn_of(int orientation);
/* Returns the cut of the stored image that has the pixels of this cut of the shown image, which
 * has this size. It is not flipped. */
fj_cut fj_stored_cut(const fj_turn *turn, const fj_cut *shown, int height, int width);
/* Returns the crop that gives the samples of the stored image. */
fj_crop fj_stored_crop(const fj_turn *turn, const fj_crop *shown);
/* Writes the sample of the stored image as the one of the shown image. */
void fj_turn_sample(const fj_turn *turn, int is_flipped, const fj_format *format,
                    const fj_crop *crop, const void *stored, void *sample);

#endif
