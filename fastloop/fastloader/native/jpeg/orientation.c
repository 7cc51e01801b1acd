/* The orientation that the EXIF data of a JPEG states (Exif 2.3, 4.6.4 and 4.7.2; TIFF 6.0,
 * section 2). columns/image_headers.py reads the same from the same bytes. Only the first
 * directory is read, once, so that no EXIF data, whatever it refers to, takes long. Broken data
 * counts as none. */
#include "jpeg.h"

#include <string.h>

enum {
    APP1 = 0xE1,
    TEM = 0x01,
    RST0 = 0xD0,
    RST7 = 0xD7,
    END_OF_IMAGE = 0xD9,
    START_OF_SCAN = 0xDA,
    MARKER_NBYTES = 2,
    HEADER_NBYTES = 8, /* size of a TIFF header, with which EXIF data begins */
    ENTRY_NBYTES = 12,
    ORIENTATION = 0x0112,
    SHORT = 3,
    LONG = 4,
};
static const char EXIF[6] = "Exif\0"; /* and one more 0 */

typedef struct {
    const uint8_t *bytes;
    size_t nbytes;
    int is_big_endian;
} tiff;

/* The bytes must be there: each caller has checked. */
static uint32_t read_number(const tiff *block, size_t place, int nbytes) {
    uint32_t number = 0;
    for (int k = 0; k < nbytes; k++) {
        int next = block->is_big_endian ? k : nbytes - 1 - k;
        number = number << 8 | block->bytes[place + (size_t)next];
    }
    return number;
}

/* Returns the number of an entry, or 1 if it is not a single integer. */
static uint32_t read_value(const tiff *block, size_t entry) {
    uint32_t type = read_number(block, entry + 2, 2), count = read_number(block, entry + 4, 4);
    if (count != 1 || (type != SHORT && type != LONG))
        return 1;
    return read_number(block, entry + 8, type == SHORT ? 2 : 4);
}

/* Returns the orientation of the first entry in the first directory that states one; 1 without
 * one. The block has at least HEADER_NBYTES. */
static uint32_t find_value(const tiff *block) {
    size_t start = read_number(block, 4, 4);
    if (start > block->nbytes - 2)
        return 1;
    uint32_t count = read_number(block, start, 2);
    size_t entry = start + 2;
    /* A directory may say that it has more entries than the block has bytes. */
    for (; count && block->nbytes - entry >= ENTRY_NBYTES; count--, entry += ENTRY_NBYTES)
        if (read_number(block, entry, 2) == ORIENTATION)
            return read_value(block, entry);
    return 1;
}

/* 42, after the order of bytes, marks a TIFF file. Values beyond 1 to 8 count as none. */
static int read_tiff(const uint8_t *bytes, size_t nbytes) {
    int is_big_endian = nbytes >= HEADER_NBYTES && !memcmp(bytes, "MM\0*", 4);
    int is_little_endian = nbytes >= HEADER_NBYTES && !memcmp(bytes, "II*\0", 4);
    tiff block = {bytes, nbytes, is_big_endian};
    uint32_t value = is_big_endian || is_little_endian ? find_value(&block) : 1;
    return value >= 1 && value <= 8 ? (int)value : 1;
}

/* Returns 1 for markers without a segment (T.81 B.1.1.3). */
static int has_no_length(int marker) { return marker == TEM || (marker >= RST0 && marker <= RST7); }

int fj_read_orientation(const uint8_t *data, size_t nbytes) {
    size_t place = MARKER_NBYTES; /* after the start of the image */
    while (place < nbytes && nbytes - place >= 4 && data[place] == 0xFF) {
        int marker = data[place + 1];
        /* fill bytes of 0xFF may precede a marker (T.81 B.1.1.2) */
        if (marker == 0xFF || has_no_length(marker)) {
            place += marker == 0xFF ? 1 : MARKER_NBYTES;
            continue;
        }
        size_t length = (size_t)data[place + 2] << 8 | data[place + 3], left = nbytes - place - 2;
        /* EXIF data comes before the first scan. A length has itself, two bytes, in it (T.81
         * B.1.1.4). */
        if (marker == START_OF_SCAN || marker == END_OF_IMAGE || length < 2 || length > left)
            return 1;
        const uint8_t *content = data + place + 4;
        if (marker == APP1 && length >= 2 + sizeof EXIF && !memcmp(content, EXIF, sizeof EXIF))
            return read_tiff(content + sizeof EXIF, length - 2 - sizeof EXIF);
        place += MARKER_NBYTES + length;
    }
    return 1;
}
