/* Restart markers for JPEGs that have none: what lies between two of them can be decoded without the
 * rest, so that a crop leaves most of what it does not need. */
#ifndef FASTLOOP_JPEG_TRANSCODE_H
#define FASTLOOP_JPEG_TRANSCODE_H

#include "jpeg.h"

/* Write to `out` a JPEG of the same coefficients, quantization tables and markers, with restart
 * markers and Huffman tables of its own. 0 where libjpeg complains of anything, or where readers
 * might show other pixels: such a file is left as it is. */
int fj_transcode(const uint8_t *data, size_t nbytes, fj_file *out);

#endif
