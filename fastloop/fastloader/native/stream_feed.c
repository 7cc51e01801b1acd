/* Counts the indices that a stream has not read yet, and feeds it more while the epoch runs. */
#include "stream.h"

#include <stdlib.h>
#include <string.h>

/* Samplers may be endless, and are not read further ahead than needed: with so many sizes of
 * batches, or so many indices and a whole batch, the stream asks for no more. */
enum { MAX_FED_SIZES = 64 };
enum { MAX_FED_AHEAD = 4096 };

/* Returns how many indices no block has taken yet. */
int64_t fl_num_unread(const fl_stream *stream) {
    const fl_order *order = stream->plan.order;
    return order->kind == FL_FED ? order->length - order->fed_begin
                                 : stream->length - stream->next_index;
}

int fl_is_fed_on(const fl_stream *stream) {
    return stream->plan.order->kind == FL_FED && !stream->plan.order->is_finished;
}

/* Returns 1 if few fed indices are left: less than a batch, or less than a block and than
 * MAX_FED_AHEAD. */
int fl_is_starved(const fl_stream *stream) {
    int64_t unread = fl_num_unread(stream), size = stream->plan.batch_size;
    int64_t block = stream->block_batches * size;
    if (!fl_is_fed_on(stream))
        return 0;
    if (size)
        return unread < size || (unread < block && unread < MAX_FED_AHEAD);
    int is_short = unread * stream->row_nbytes < (int64_t)stream->plan.block_nbytes;
    return !stream->num_sizes || (is_short && unread < MAX_FED_AHEAD &&
                                  stream->num_sizes < MAX_FED_SIZES);
}

/* Returns 0 if there is no memory. Called by the consumer, which alone asks for indices. */
int fl_feed(fl_stream *stream, fl_indices indices, int64_t count, const int64_t *sizes,
            int64_t num_sizes) {
    pthread_mutex_lock(&stream->mutex);
    int is_fed = fl_feed_order(stream->plan.order, indices, count);
    if (is_fed && stream->num_sizes + num_sizes > stream->sizes_capacity) {
        int64_t capacity = 2 * (stream->num_sizes + num_sizes);
        int64_t *grown = realloc(stream->sizes, (size_t)capacity * sizeof *grown);
        is_fed = grown != NULL;
        stream->sizes = grown ? grown : stream->sizes;
        stream->sizes_capacity = grown ? capacity : stream->sizes_capacity;
    }
    if (is_fed && num_sizes) {
        memcpy(stream->sizes + stream->num_sizes, sizes, (size_t)num_sizes * sizeof *sizes);
        stream->num_sizes += num_sizes;
    }
    pthread_cond_broadcast(&stream->work);
    pthread_mutex_unlock(&stream->mutex);
    return is_fed;
}

void fl_finish_feed(fl_stream *stream) {
    pthread_mutex_lock(&stream->mutex);
    stream->plan.order->is_finished = 1;
    pthread_cond_broadcast(&stream->work);
    pthread_mutex_unlock(&stream->mutex);
}
