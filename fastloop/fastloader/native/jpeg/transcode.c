/* The coefficients of a JPEG, written again in segments that can be decoded one by one: no pixel
 * is decoded, so that none changes. */
#include "libjpeg_errors.h"

#include <stdlib.h>
#include <string.h>

#include "transcode.h"

enum {
    SEGMENT_WIDTH = 32, /* in pixels, at least approximately */
    /* the fewest blocks of a segment, which costs about three bytes: a marker, padding, and DC
     * values without a prediction */
    MIN_BLOCKS = 6,
    FIRST_CAPACITY = 1 << 12,
};

typedef struct {
    fj_errors errors; /* the handler of in and out */
    struct jpeg_decompress_struct in;
    struct jpeg_compress_struct out;
    struct jpeg_destination_mgr destination;
    fj_file *file;
} transcoder;

/* ---- the output grows as it is written ---- */

/* Called by libjpeg: before the first byte, when the memory is full, and after the last byte. */
static void begin_output(j_compress_ptr out) {
    transcoder *self = out->client_data;
    self->destination.next_output_byte = self->file->data;
    self->destination.free_in_buffer = self->file->capacity;
}

static boolean grow_output(j_compress_ptr out) {
    transcoder *self = out->client_data;
    size_t written = self->file->capacity;
    uint8_t *data = realloc(self->file->data, 2 * written);
    if (!data)
        longjmp(self->errors.refuse, 1);
    self->file->data = data;
    self->file->capacity = 2 * written;
    self->destination.next_output_byte = data + written;
    self->destination.free_in_buffer = written;
    return TRUE;
}

static void end_output(j_compress_ptr out) {
    transcoder *self = out->client_data;
    self->file->nbytes = self->file->capacity - self->destination.free_in_buffer;
}

/* ---- the image, and the parts that are kept ---- */

static int divide_up(int length, int part) { return (length + part - 1) / part; }

/* Returns the MCUs of a segment: a divisor of those of a row, so that each row begins with a
 * segment and entropy_scan.c can pass over it. Of those, the nearest to SEGMENT_WIDTH by ratio; a
 * whole row if none has MIN_BLOCKS. */
static unsigned choose_interval(const j_decompress_ptr in) {
    /* A scan of one component has units of one block (T.81 A.2.2). */
    int is_grey = in->num_components == 1, blocks = is_grey;
    int width = DCTSIZE * (is_grey ? 1 : in->max_h_samp_factor);
    for (int k = 0; !is_grey && k < in->num_components; k++)
        blocks += in->comp_info[k].h_samp_factor * in->comp_info[k].v_samp_factor;
    int columns = divide_up((int)in->image_width, width);
    int wanted = SEGMENT_WIDTH / width > 1 ? SEGMENT_WIDTH / width : 1, best = 0, best_cost = 0;
    for (int interval = 1; interval <= 2 * wanted && interval <= columns; interval++) {
        int cost = 100 * (interval > wanted ? interval : wanted);
        cost /= interval < wanted ? interval : wanted;
        if (columns % interval || interval * blocks < MIN_BLOCKS || (best && cost >= best_cost))
            continue;
        best = interval, best_cost = cost;
    }
    return (unsigned)(best ? best : columns);
}

/* Reads the header. Returns 0 for an image of colours that only a general decoder knows.
 * Application data and comments are kept, for copy_markers(). */
static int read_header(j_decompress_ptr in, const uint8_t *data, size_t nbytes) {
    jpeg_mem_src(in, data, (unsigned long)nbytes);
    for (int number = 0; number < 16; number++)
        jpeg_save_markers(in, JPEG_APP0 + number, 0xFFFF);
    jpeg_save_markers(in, JPEG_COM, 0xFFFF);
    jpeg_read_header(in, TRUE);
    size_t pixels = (size_t)in->image_height * in->image_width;
    int is_known = in->jpeg_color_space == JCS_GRAYSCALE || in->jpeg_color_space == JCS_YCbCr ||
                   in->jpeg_color_space == JCS_RGB;
    return is_known && pixels <= FJ_MAX_PIXELS;
}

/* Returns 1 if all bits of all coefficients were there. A decoder smooths a progressive image
 * that ends early (coef_bits is not 0), and would not know of the new file that it did. */
static int is_complete(const j_decompress_ptr in) {
    if (!in->progressive_mode)
        return 1;
    for (int component = 0; component < in->num_components; component++)
        for (int k = 0; k < DCTSIZE2; k++)
            if (in->coef_bits[component][k])
                return 0;
    return 1;
}

static int begins_with(jpeg_saved_marker_ptr marker, int code, const char *text, unsigned length) {
    return marker->marker == code && marker->data_length >= length &&
           !memcmp(marker->data, text, length);
}

/* Copies all markers but those that libjpeg writes by itself, and the places of pictures after
 * this one (Multi-Picture Format), which are not there any more. */
static void copy_markers(const transcoder *self, j_compress_ptr out) {
    for (jpeg_saved_marker_ptr marker = self->in.marker_list; marker; marker = marker->next) {
        int is_written = begins_with(marker, JPEG_APP0, "JFIF", 5) ||
                         begins_with(marker, JPEG_APP0 + 14, "Adobe", 5);
        if (!is_written && !begins_with(marker, JPEG_APP0 + 2, "MPF", 4))
            jpeg_write_marker(out, marker->marker, marker->data, marker->data_length);
    }
}

/* Returns 0 if the file is to be left as it is. libjpeg's complaints jump to run(). */
static int transcode(transcoder *self, const uint8_t *data, size_t nbytes) {
    j_decompress_ptr in = &self->in;
    j_compress_ptr out = &self->out;
    if (!read_header(in, data, nbytes))
        return 0;
    jvirt_barray_ptr *coefficients = jpeg_read_coefficients(in);
    if (!is_complete(in))
        return 0;
    jpeg_copy_critical_parameters(in, out);
    out->optimize_coding = TRUE;
    out->restart_interval = choose_interval(in);
    /* these markers tell decoders the colours: the new file has those of the old one */
    out->write_JFIF_header = in->saw_JFIF_marker;
    out->write_Adobe_marker = in->saw_Adobe_marker;
    jpeg_write_coefficients(out, coefficients);
    copy_markers(self, out);
    jpeg_finish_compress(out);
    return 1;
}

/* Returns NULL if there is no memory. libjpeg has yet to create its objects: they are zeros. */
static transcoder *open_transcoder(fj_file *file) {
    transcoder *self = calloc(1, sizeof *self);
    if (!self)
        return NULL;
    self->file = file;
    self->destination.init_destination = begin_output;
    self->destination.empty_output_buffer = grow_output;
    self->destination.term_destination = end_output;
    self->in.err = self->out.err = fj_set_errors(&self->errors);
    self->out.client_data = self;
    return self;
}

/* Returns 0 if libjpeg complains. The transcoder is on the heap, as setjmp() does not keep local
 * variables. */
static int run(transcoder *self, const uint8_t *data, size_t nbytes) {
    if (setjmp(self->errors.refuse))
        return 0;
    jpeg_create_decompress(&self->in);
    fj_set_limits(&self->errors, (j_common_ptr)&self->in);
    jpeg_create_compress(&self->out);
    fj_set_limits(&self->errors, (j_common_ptr)&self->out);
    self->out.dest = &self->destination;
    return transcode(self, data, nbytes);
}

int fj_transcode(const uint8_t *data, size_t nbytes, fj_file *out) {
    if (!fj_reserve(&out->data, &out->capacity, FIRST_CAPACITY))
        return 0;
    transcoder *self = open_transcoder(out);
    if (!self)
        return 0;
    int is_made = run(self, data, nbytes);
    jpeg_destroy_compress(&self->out); /* does nothing if it has not been created */
    jpeg_destroy_decompress(&self->in);
    free(self);
    return is_made;
}
