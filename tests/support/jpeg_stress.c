/* The decoder of JPEG images under stress, to be compiled with sanitizers: the files that are named,
 * cut off and overwritten, cut at random into samples of exact memory. Those that can be transcoded
 * have to give the same samples then. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transcode.h"

enum { MAX_FILES = 16, MAX_CHANGES = 12 };

static uint64_t random_state = 1;

static uint64_t random_bits(void) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return random_state >> 33;
}

static int random_between(int low, int high) {
    return low + (int)(random_bits() % (uint64_t)(high - low + 1));
}

/* Put a part of the file over another, or a restart marker somewhere, or nothing. */
static void damage_segments(uint8_t *data, size_t nbytes) {
    size_t from = random_bits() % nbytes, to = random_bits() % nbytes;
    size_t most = nbytes - (from > to ? from : to);
    int kind = random_between(0, 5);
    if (kind == 0)
        memmove(data + to, data + from, random_bits() % (most + 1));
    if (kind == 1 && most > 1)
        data[to] = 0xFF, data[to + 1] = (uint8_t)random_between(0xD0, 0xD9);
}

/* Change some bytes, more often in the header than elsewhere, or none. */
static size_t damage(uint8_t *data, size_t nbytes) {
    damage_segments(data, nbytes);
    int changes = random_between(0, MAX_CHANGES);
    size_t header = nbytes < 700 ? nbytes : 700;
    for (int k = 0; k < changes; k++) {
        size_t limit = random_between(0, 2) ? header : nbytes;
        data[random_bits() % limit] = random_between(0, 3) ? (uint8_t)random_bits() : 0xFF;
    }
    return random_between(0, 3) ? nbytes : random_bits() % (nbytes + 1);
}

static fj_crop random_crop(void) {
    fj_crop crop = {.kind = (fj_crop_kind)random_between(0, 1), .flip = 0.5};
    crop.height = random_between(1, 40), crop.width = random_between(1, 40);
    crop.shorter_side = random_between(40, 80);
    crop.min_area = 0.001 * random_between(1, 500), crop.max_area = 1;
    crop.min_ratio = 0.1 * random_between(1, 10), crop.max_ratio = random_between(1, 9);
    crop.applies_orientation = random_between(0, 1);
    return crop;
}

/* A sample in memory of its own, or NULL. */
static char *make(fj_decoder *decoder, const uint8_t *bytes, size_t nbytes, const fj_crop *crop,
                  const fj_format *format, uint64_t key) {
    uint8_t *data = malloc(nbytes + 1); /* of exact size but for the one byte of an empty file */
    memcpy(data + 1, bytes, nbytes);
    char *sample = malloc(fj_sample_nbytes(crop, format));
    int is_made = fj_make_sample(decoder, data + 1, nbytes, crop, format, key, sample);
    free(data);
    if (is_made)
        return sample;
    free(sample);
    return NULL;
}

/* 1 where a sample is made; ends the program where it is another one after transcoding. */
static int try(fj_decoder *decoder, const uint8_t *data, size_t nbytes) {
    fj_crop crop = random_crop();
    fj_format format = {(fj_type)random_between(0, 2), random_between(0, 1), {1, 1, 1}, {0, 0, 0}};
    uint64_t key = random_bits();
    char *sample = make(decoder, data, nbytes, &crop, &format, key), *same = NULL;
    fj_file transcoded = {0};
    int is_transcoded = fj_transcode(data, nbytes, &transcoded);
    if (is_transcoded)
        same = make(decoder, transcoded.data, transcoded.nbytes, &crop, &format, key);
    if (is_transcoded && sample &&
        (!same || memcmp(sample, same, fj_sample_nbytes(&crop, &format))))
        exit(4);
    free(transcoded.data);
    free(same);
    free(sample);
    return sample != NULL;
}

int main(int argc, char **argv) {
    int rounds = atoi(argv[1]), made = 0, count = argc - 2;
    fj_file files[MAX_FILES] = {0};
    fj_check_own_scan();
    if (fj_own_scan_problem())
        return 4; /* else libjpeg would read the codes, not entropy_scan.c */
    fj_decoder *decoder = fj_open_decoder();
    if (!decoder || count < 1 || count > MAX_FILES)
        return 2;
    for (int k = 0; k < count; k++)
        if (!fj_read_file(&files[k], argv[k + 2]) || !try(decoder, files[k].data, files[k].nbytes))
            return 3;
    for (int round = 0; round < rounds; round++) {
        const fj_file *file = &files[random_between(0, count - 1)];
        uint8_t *data = malloc(file->nbytes);
        memcpy(data, file->data, file->nbytes);
        made += try(decoder, data, damage(data, file->nbytes));
        free(data);
    }
    for (int k = 0; k < count; k++)
        free(files[k].data);
    fj_close_decoder(decoder);
    printf("%s\n", made && made < rounds ? "some were made" : "all or none were made");
    return 0;
}
