/* Opens blocks: chooses the number of batches of the next block, reads their indices and takes
 * their memory. */
#include "stream.h"

#include <stdlib.h>
#include <string.h>

enum { BLOCK_GROWTH = 4 };

/* The first blocks have one batch, so that the first batch is ready soon. Each time that every
 * thread and the consumer have opened one, blocks grow by BLOCK_GROWTH. */
static int64_t most_batches(const fl_stream *stream) {
    int64_t most = 1, level = stream->num_opened / (stream->plan.num_threads + 1);
    while (level-- > 0 && most < stream->block_batches)
        most *= BLOCK_GROWTH;
    return most < stream->block_batches ? most : stream->block_batches;
}

/* Returns how many batches can be opened now, at most `most`. The last one of the epoch may be
 * short. */
static int64_t count_batches(const fl_stream *stream, int64_t most) {
    int64_t size = stream->plan.batch_size, unread = fl_num_unread(stream);
    if (!size) {
        int64_t limit = (int64_t)stream->plan.block_nbytes / (stream->row_nbytes + 1);
        int64_t count = 0, rows = 0;
        /* At least one batch, even if it is larger than a block. */
        while (count < stream->num_sizes && count < most && (!count || rows < limit))
            rows += stream->sizes[count++];
        return count;
    }
    /* While more indices may be fed, a short rest is not a batch yet. */
    int is_short = unread % size && !fl_is_fed_on(stream) && !stream->plan.drop_last;
    int64_t count = unread / size + is_short;
    return count < most ? count : most;
}

int fl_can_open_block(const fl_stream *stream) {
    /* If more may be fed, there must be a whole batch. Otherwise fl_open_block() finds out that
     * the epoch has ended. */
    return !stream->is_opening && !stream->is_ended &&
           stream->tail - stream->head < stream->num_slots &&
           (!fl_is_fed_on(stream) || count_batches(stream, 1));
}

/* Returns 0 if there is no memory. Memory that the slot has is used again if it is large enough. */
static int reserve(fl_slot *slot, int64_t num_rows, int64_t num_batches) {
    if (num_rows > slot->scratch_capacity) {
        free(slot->scratch);
        slot->scratch = malloc((size_t)num_rows * sizeof *slot->scratch);
        slot->scratch_capacity = slot->scratch ? num_rows : 0;
    }
    if (num_batches + 1 > slot->batches_length) {
        free(slot->bounds);
        free(slot->places);
        slot->bounds = malloc((size_t)(num_batches + 1) * sizeof *slot->bounds);
        slot->places = malloc((size_t)(num_batches + 1) * sizeof *slot->places);
        slot->batches_length = slot->bounds && slot->places ? num_batches + 1 : 0;
    }
    return slot->scratch_capacity >= num_rows && slot->batches_length;
}

/* Takes the next batches' sizes, with the mutex held, and writes them to the slot. Returns the
 * position of the first index, or -1 if there is no memory. */
static int64_t plan_slot(fl_stream *stream, fl_slot *slot, int64_t num_batches) {
    int64_t size = stream->plan.batch_size, unread = fl_num_unread(stream), rows = 0;
    for (int64_t k = 0; k < num_batches; k++)
        rows += size ? size : stream->sizes[k];
    /* The last batch of the epoch may be short. */
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
    /* fl_feed() changes a fed order, with the mutex held: it is read here, while it is held. */
    if (stream->plan.order->kind == FL_FED)
        slot->indices = fl_read_order(stream->plan.order, start, rows, slot->scratch);
    return start;
}

/* Takes memory for the slot's batches, each of which begins aligned, as does each of its
 * columns. Returns 0 if there is none. Runs without the mutex: the slot is not open yet. */
static int take_memory(const fl_stream *stream, fl_slot *slot) {
    size_t nbytes = 0;
    for (int64_t k = 0; k < slot->num_batches; k++) {
        slot->places[k] = nbytes;
        for (int c = 0; c < stream->plan.num_columns; c++)
            nbytes += fl_align((size_t)((slot->bounds[k + 1] - slot->bounds[k]) *
                                        stream->plan.columns[c].nbytes));
    }
    /* A smaller block, such as the last one of an epoch, gets the usual size too, so that any later
     * block can use its memory again. */
    size_t whole = (size_t)(stream->block_batches * stream->batch_nbytes);
    int is_near = nbytes < whole && whole <= stream->plan.block_nbytes;
    slot->block = fl_take_block(stream->plan.pool, is_near ? whole : nbytes);
    return slot->block != NULL;
}

/* The mutex is held on entry and on return. Only one thread at a time is in here, by is_opening. */
void fl_open_block(fl_stream *stream) {
    int64_t count = count_batches(stream, most_batches(stream));
    if (!count) {
        stream->is_ended = 1;
        pthread_cond_broadcast(&stream->work);
        pthread_cond_signal(&stream->ready);
        return;
    }
    /* is_opening keeps others from this slot and from the order, which only one thread at a time
     * may read, until the mutex is taken again below. */
    fl_slot *slot = fl_slot_of(stream, stream->tail);
    stream->is_opening = 1;
    int64_t start = plan_slot(stream, slot, count);
    pthread_mutex_unlock(&stream->mutex);
    /* Looked at directly before the rows of the block are read: a file that becomes shorter
     * later ends the process. */
    int cut_column = fl_find_cut_off(stream->plan.columns, stream->plan.num_columns);
    int is_open = cut_column < 0 && start >= 0 && take_memory(stream, slot);
    if (is_open && stream->plan.order->kind != FL_FED)
        slot->indices = fl_read_order(stream->plan.order, stream->plan.start + start,
                                      slot->num_rows, slot->scratch);
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
