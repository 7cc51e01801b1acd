/* The part of a JPEG that a sample needs, decoded by libjpeg-turbo and resized as its rows come.
 * Each row of the sample is two sums: of the image's rows, as soon as the last one of them is
 * decoded, and then of the columns of this line. */
#include "decoder.h"

#include <stdlib.h>

#include "turn.h"

enum {
    CHANNELS = 4,       /* the fourth is not used, but pixels of four bytes are faster */
    /* decoded beside the window: libjpeg's upsampling of colours looks at neighbours */
    MARGIN = 8,
    PADDING = 64,       /* bytes after a row that may be read and written */
    ALIGNMENT = 32,
    /* rows begin 8 bytes after a multiple of 32: libjpeg-turbo writes aligned ones past the
     * cache, from which the sums would have to read them again */
    UNALIGNED = 8,
};

/* Returns 0 if there is no memory, at which libjpeg jumps to setjmp(). */
static int create(fj_decoder *decoder) {
    decoder->info.err = fj_set_errors(&decoder->errors);
    decoder->info.client_data = decoder;
    if (setjmp(decoder->errors.refuse))
        return 0;
    jpeg_create_decompress(&decoder->info);
    fj_set_limits(&decoder->errors, (j_common_ptr)&decoder->info);
    return 1;
}

fj_decoder *fj_open_decoder(void) {
    fj_decoder *decoder = calloc(1, sizeof *decoder);
    if (decoder && !create(decoder)) {
        fj_close_decoder(decoder);
        return NULL;
    }
    if (decoder)
        decoder->reads_scan = !fj_own_scan_problem();
    return decoder;
}

void fj_close_decoder(fj_decoder *decoder) {
    if (!decoder)
        return;
    jpeg_destroy_decompress(&decoder->info);
    fj_free_weights(&decoder->rows);
    fj_free_weights(&decoder->columns);
    free(decoder->scan.codes);
    free(decoder->ring.bytes);
    free(decoder->taps.bytes);
    free(decoder->line.bytes);
    free(decoder->sums.bytes);
    free(decoder->turned.bytes);
    free(decoder);
}

/* ---- memory ---- */

/* Returns 0 if there is no memory. The contents are lost if it grows. */
static int reserve(fj_memory *memory, size_t nbytes) {
    if (nbytes <= memory->capacity)
        return 1;
    free(memory->bytes);
    memory->bytes = calloc(1, nbytes); /* taps without weight read bytes that nobody has written */
    memory->capacity = memory->bytes ? nbytes : 0;
    return memory->bytes != NULL;
}

/* Reserves the memory of a sample's sums; 0 if there is none. The ring has one row more than a
 * sum. */
static int reserve_rows(fj_decoder *decoder) {
    const fj_weights *rows = &decoder->rows, *columns = &decoder->columns;
    size_t taps = (size_t)rows->taps, window = (size_t)(columns->end - columns->begin);
    /* A sample of one row has twice as many taps as its window has rows. */
    int window_rows = rows->end - rows->begin;
    decoder->num_rows = rows->taps < window_rows ? rows->taps + 1 : window_rows;
    size_t nbytes = (size_t)decoder->info.output_width * CHANNELS + PADDING;
    decoder->stride = (nbytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    /* The last pixels' taps, of which some may weigh nothing, reach beyond the window. */
    size_t line = (window + (size_t)columns->taps) * CHANNELS + PADDING;
    size_t ring = decoder->stride * (size_t)decoder->num_rows + UNALIGNED + ALIGNMENT;
    return reserve(&decoder->ring, ring) &&
           reserve(&decoder->taps, taps * sizeof(uint8_t *)) &&
           reserve(&decoder->line, line * sizeof(int16_t)) &&
           reserve(&decoder->sums, (size_t)columns->count * CHANNELS * sizeof(int32_t));
}

/* Returns the place of a row of the image in the ring. */
static uint8_t *row_of(const fj_decoder *decoder, int row) {
    uint8_t *ring = decoder->ring.bytes;
    size_t before = (ALIGNMENT - (uintptr_t)ring % ALIGNMENT) % ALIGNMENT + UNALIGNED;
    return ring + before + (size_t)(row % decoder->num_rows) * decoder->stride;
}

/* ---- decoding ---- */

/* Returns 1 if the end marker (EOI, T.81 B.2.1) is there. A file that was cut off may have all
 * rows that a crop needs, but is broken: whether it is refused must not depend on the crop. */
static int has_end(const uint8_t *data, size_t nbytes) {
    for (size_t k = nbytes; k >= 2; k--)
        if (data[k - 2] == 0xFF && data[k - 1] == 0xD9)
            return 1;
    return 0;
}

/* Reads the header. Returns 0 for an image that another decoder must read. */
static int read_header(fj_decoder *decoder, const uint8_t *data, size_t nbytes) {
    j_decompress_ptr info = &decoder->info;
    jpeg_mem_src(info, data, (unsigned long)nbytes);
    jpeg_read_header(info, TRUE);
    int is_known = info->jpeg_color_space == JCS_GRAYSCALE ||
                   info->jpeg_color_space == JCS_YCbCr || info->jpeg_color_space == JCS_RGB;
    info->out_color_space = JCS_EXT_RGBX;
    size_t pixels = (size_t)info->image_height * info->image_width;
    return is_known && pixels <= FJ_MAX_PIXELS &&
           has_end(info->src->next_input_byte, info->src->bytes_in_buffer);
}

/* Starts to decode, and skips the rows above and the columns beside the window. Returns the
 * column with which the decoded rows begin. */
static int skip_to_window(fj_decoder *decoder) {
    j_decompress_ptr info = &decoder->info;
    jpeg_start_decompress(info);
    int end = decoder->columns.end + MARGIN, whole = (int)info->output_width;
    int begin = decoder->columns.begin;
    JDIMENSION left = (JDIMENSION)(begin > MARGIN ? begin - MARGIN : 0);
    JDIMENSION width = (JDIMENSION)(end < whole ? end : whole) - left;
    if (width < info->output_width)
        /* It moves `left` back to the start of an MCU, and widens `width` accordingly. */
        jpeg_crop_scanline(info, &left, &width);
    /* After the columns are known, and before the first code is read. */
    fj_read_baseline(decoder, (int)left);
    if (decoder->rows.begin > 0)
        jpeg_skip_scanlines(info, (JDIMENSION)decoder->rows.begin);
    return (int)left;
}

/* Decodes the rows `next` to end - 1 into the ring, over those that no sum needs any more. */
static void read_rows(fj_decoder *decoder, int next, int end) {
    for (; next < end; next++) {
        JSAMPROW row = row_of(decoder, next);
        if (jpeg_read_scanlines(&decoder->info, &row, 1) != 1)
            longjmp(decoder->errors.refuse, 1);
    }
}

/* Sets the addresses of the rows of a sum, each from `offset` bytes on. */
static void point_at_rows(fj_decoder *decoder, int first, size_t offset) {
    const uint8_t **addresses = decoder->taps.bytes;
    /* a tap beyond the last row has no weight, but must point at a row */
    int last = decoder->rows.end - 1;
    for (int tap = 0; tap < decoder->rows.taps; tap++)
        addresses[tap] = row_of(decoder, first + tap < last ? first + tap : last) + offset;
}

/* Decodes and resizes the window that the weights name. Returns 0 if there is no memory. */
static int decode_window(fj_decoder *decoder, const fj_crop *crop, const fj_format *format,
                         char *sample) {
    const fj_weights *rows = &decoder->rows, *columns = &decoder->columns;
    int left = skip_to_window(decoder), next = rows->begin;
    if (!reserve_rows(decoder))
        return 0;
    size_t offset = (size_t)(columns->begin - left) * CHANNELS;
    for (int k = 0; k < rows->count; k++) {
        /* Sums overlap, or leave rows out: those from `next` on that this sum needs have yet to
         * be decoded. */
        int first = rows->firsts[k], end = first + rows->taps;
        end = end < rows->end ? end : rows->end;
        read_rows(decoder, next, end);
        next = end > next ? end : next;
        point_at_rows(decoder, first, offset);
        fj_combine_rows(decoder->taps.bytes, rows->weights + (size_t)k * (size_t)rows->taps,
                        rows->taps, (columns->end - columns->begin) * CHANNELS,
                        decoder->line.bytes);
        fj_combine_columns(columns, decoder->line.bytes, decoder->sums.bytes);
        fj_write_row(format, crop, k, decoder->sums.bytes, sample);
    }
    return 1;
}

/* Makes the sample of a cut of the stored image. Returns 0 if there is no memory. */
static int make_stored(fj_decoder *decoder, const fj_crop *crop, const fj_format *format,
                       const fj_cut *cut, char *sample) {
    return fj_weigh(&decoder->rows, &cut->rows, 0) &&
           fj_weigh(&decoder->columns, &cut->columns, cut->is_flipped) &&
           decode_window(decoder, crop, format, sample);
}

/* Makes the sample of an image that is shown turned: the cut is drawn of the shown image, made
 * of the stored one, and turned. */
static int make_turned(fj_decoder *decoder, const fj_crop *crop, const fj_format *format,
                       uint64_t key, int orientation, char *sample) {
    fj_turn turn = fj_turn_of(orientation);
    int height = (int)decoder->info.image_height, width = (int)decoder->info.image_width;
    if (turn.is_transposed)
        height = width, width = (int)decoder->info.image_height;
    fj_cut shown = fj_draw_cut(crop, key, height, width);
    fj_cut cut = fj_stored_cut(&turn, &shown, height, width);
    fj_crop stored = fj_stored_crop(&turn, crop);
    int is_made = reserve(&decoder->turned, fj_sample_nbytes(crop, format)) &&
                  make_stored(decoder, &stored, format, &cut, decoder->turned.bytes);
    if (is_made)
        fj_turn_sample(&turn, shown.is_flipped, format, crop, decoder->turned.bytes, sample);
    return is_made;
}

int fj_make_sample(fj_decoder *decoder, const uint8_t *data, size_t nbytes, const fj_crop *crop,
                   const fj_format *format, uint64_t key, char *sample) {
    j_decompress_ptr info = &decoder->info;
    int orientation = crop->applies_orientation ? fj_read_orientation(data, nbytes) : 1;
    if (setjmp(decoder->errors.refuse)) {
        jpeg_abort_decompress(info);
        return 0;
    }
    int is_made = read_header(decoder, data, nbytes);
    if (is_made && orientation == 1) {
        fj_cut cut = fj_draw_cut(crop, key, (int)info->image_height, (int)info->image_width);
        is_made = make_stored(decoder, crop, format, &cut, sample);
    } else if (is_made) {
        is_made = make_turned(decoder, crop, format, key, orientation, sample);
    }
    jpeg_abort_decompress(info); /* rows below the window are not decoded */
    return is_made;
}
