/* Restart markers (T.81 B.2.1) for JPEGs that have none: the data between two of them can be
 * decoded without the rest, so that a crop decodes little more than it needs. */
#ifndef FASTLOOP_JPEG_TRANSCODE_H
#define FASTLOOP_JPEG_TRANSCODE_H

#include "jpeg.h"

/* Writes to `out` a JPEG of the same coefficients, quantization tables and markers, with restart
 * markers and Huffman tables of its own. Returns 0 if libjpeg complains of anything, or if
 * readers might show other pixels: such a file is left as it is. */
int fj_transcode(const uint8_t *data, size_t nbytes, fj_file *out);

#endif
