/* Opening blocks: how many batches the next one has, their indices and their memory. */
#include "stream.h"

#include <stdlib.h>
#include <string.h>

enum { BLOCK_GROWTH = 4 };

/* The first blocks are of one batch, so that the first batch is ready soon. */
static int64_t most_batches(const fl_stream *stream) {
    int64_t most = 1, level = stream->num_opened / (stream->plan.num_threads + 1);
    while (level-- > 0 && most < stream->block_batches)
        most *= BLOCK_GROWTH;
    return most < stream->block_batches ? most : stream->block_batches;
}

/* The number of batches that can be made now, of at most `most`; the last one may be short. */
static int64_t count_batches(const fl_stream *stream, int64_t most) {
    int64_t size = stream->plan.batch_size, unread = fl_num_unread(stream);
    if (!size) {
        int64_t limit = (int64_t)stream->plan.block_nbytes / (stream->row_nbytes + 1);
        int64_t count = 0, rows = 0;
        while (count < stream->num_sizes && count < most && (!count || rows < limit))
            rows += stream->sizes[count++];
        return count;
    }
    int is_short = unread % size && !fl_is_fed_on(stream) && !stream->plan.drop_last;
    int64_t count = unread / size + is_short;
    return count < most ? count : most;
}

int fl_can_open_block(const fl_stream *stream) {
    return !stream->is_opening && !stream->is_ended &&
           stream->tail - stream->head < stream->num_slots &&
           (!fl_is_fed_on(stream) || count_batches(stream, 1));
}

static int reserve(fl_slot *slot, int64_t num_rows, int64_t num_batches) {
    if (num_rows > slot->room_length) {
        free(slot->room);
        slot->room = malloc((size_t)num_rows * sizeof *slot->room);
        slot->room_length = slot->room ? num_rows : 0;
    }
    if (num_batches + 1 > slot->batches_length) {
        free(slot->bounds);
        free(slot->places);
        slot->bounds = malloc((size_t)(num_batches + 1) * sizeof *slot->bounds);
        slot->places = malloc((size_t)(num_batches + 1) * sizeof *slot->places);
        slot->batches_length = slot->bounds && slot->places ? num_batches + 1 : 0;
    }
    return slot->room_length >= num_rows && slot->batches_length;
}

/* Take the next batches' sizes; returns the first index's position, or -1 where memory is short. */
static int64_t plan_slot(fl_stream *stream, fl_slot *slot, int64_t num_batches) {
    int64_t size = stream->plan.batch_size, unread = fl_num_unread(stream), rows = 0;
    for (int64_t k = 0; k < num_batches; k++)
        rows += size ? size : stream->sizes[k];
    rows = rows < unread ? rows : unread;
    if (!reserve(slot, rows, num_batches))
        return -1;
    slot->bounds[0] = 0;
    for (int64_t k = 0; k < num_batches; k++) {
        int64_t stop = slot->bounds[k] + (size ? size : stream->sizes[k]);
        slot->bounds[k + 1] = stop < rows ? stop : rows;
    }
    if (!size) {
        stream->num_sizes -= num_batches;
        memmove(stream->sizes, stream->sizes + num_batches,
                (size_t)stream->num_sizes * sizeof *stream->sizes);
    }
    slot->first_batch = stream->num_planned;
    stream->num_planned += num_batches;
    slot->num_batches = num_batches;
    slot->num_rows = slot->unfinished = slot->num_valid = rows;
    slot->next_row = 0;
    int64_t start = stream->next_index;
    stream->next_index += rows;
    if (stream->plan.order->kind == FL_FED) /* read here, as feeding changes it */
        slot->indices = fl_read_order(stream->plan.order, start, rows, slot->room);
    return start;
}

static int take_memory(const fl_stream *stream, fl_slot *slot) {
    size_t nbytes = 0;
    for (int64_t k = 0; k < slot->num_batches; k++) {
        slot->places[k] = nbytes;
        for (int c = 0; c < stream->plan.num_columns; c++)
            nbytes += fl_align((size_t)((slot->bounds[k + 1] - slot->bounds[k]) *
                                        stream->plan.columns[c].nbytes));
    }
    /* blocks of one size can be taken again for any other */
    size_t whole = (size_t)(stream->block_batches * stream->batch_nbytes);
    int is_near = nbytes < whole && whole <= stream->plan.block_nbytes;
    slot->block = fl_take_block(stream->plan.pool, is_near ? whole : nbytes);
    return slot->block != NULL;
}

void fl_open_block(fl_stream *stream) {
    int64_t count = count_batches(stream, most_batches(stream));
    if (!count) {
        stream->is_ended = 1;
        pthread_cond_broadcast(&stream->work);
        pthread_cond_signal(&stream->ready);
        return;
    }
    fl_slot *slot = fl_slot_of(stream, stream->tail);
    stream->is_opening = 1;
    int64_t start = plan_slot(stream, slot, count);
    pthread_mutex_unlock(&stream->mutex);
    /* here, directly before the rows of the block are read: what is cut off later ends the process */
    int cut_column = fl_find_cut_off(stream->plan.columns, stream->plan.num_columns);
    int is_open = cut_column < 0 && start >= 0 && take_memory(stream, slot);
    if (is_open && stream->plan.order->kind != FL_FED)
        slot->indices = fl_read_order(stream->plan.order, stream->plan.start + start,
                                      slot->num_rows, slot->room);
    pthread_mutex_lock(&stream->mutex);
    stream->is_opening = 0;
    if (is_open) {
        stream->tail++;
        stream->num_opened++;
        stream->unclaimed_rows += slot->num_rows;
    } else if (cut_column >= 0) {
        stream->is_cut_off = 1;
        stream->cut_column = cut_column;
    } else {
        stream->is_out_of_memory = 1;
    }
    pthread_cond_broadcast(&stream->work);
    pthread_cond_signal(&stream->ready);
}
