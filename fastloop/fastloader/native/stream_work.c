/* The work on a stream, which its threads and the consumer share: making pieces of blocks, and
 * opening the next blocks in time. */
#if !defined(_POSIX_C_SOURCE)
#define _POSIX_C_SOURCE 200809L
#endif
#include "stream.h"

#include <time.h>

/* Returns the batch of the block that has this row, by bisection. */
static int64_t batch_of(const fl_slot *slot, int64_t row) {
    int64_t batch = 0, end = slot->num_batches;
    while (end - batch > 1) {
        int64_t middle = (batch + end) / 2;
        if (slot->bounds[middle] <= row)
            batch = middle;
        else
            end = middle;
    }
    return batch;
}

/* Makes the rows start to stop - 1 of a block, all of valid indices, without the mutex: the
 * piece is this thread's, and nothing else writes to these rows. A piece may end in the middle
 * of a batch. */
static void make_rows(const fl_stream *stream, const fl_slot *slot, int64_t start, int64_t stop) {
    int64_t batch = batch_of(slot, start);
    for (int64_t row = start; row < stop; batch++) {
        int64_t first = slot->bounds[batch], last = slot->bounds[batch + 1];
        int64_t until = last < stop ? last : stop;
        char *memory = slot->block->memory + slot->places[batch];
        /* Rows of the next batch in this piece are prefetched while the last ones of this batch
         * are made. */
        fl_span span = {until - row, stop - until, row == start, stream->bypasses};
        for (int c = 0; c < stream->plan.num_columns; c++) {
            const fl_column *column = &stream->plan.columns[c];
            fl_make_rows(column, fl_skip(slot->indices, row), span,
                         memory + (row - first) * column->nbytes);
            memory += fl_align((size_t)((last - first) * column->nbytes));
        }
        row = until;
    }
    /* The rows must have arrived before the mutex is taken and the piece counted as made. */
    if (stream->bypasses)
        fl_finish_stores();
}

/* Returns the time on the clock of Python's time.perf_counter_ns, or 0 if nothing is recorded. */
static int64_t event_ns(const fl_stream *stream) {
#ifdef __APPLE__
    const clockid_t clock = CLOCK_UPTIME_RAW;
#else
    const clockid_t clock = CLOCK_MONOTONIC;
#endif
    struct timespec now;
    if (!stream->plan.events)
        return 0;
    clock_gettime(clock, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* Called with the mutex held. Events for which there is no memory left are dropped. */
static void record(fl_stream *stream, fl_event event) {
    if (stream->num_events < stream->plan.max_events)
        stream->plan.events[stream->num_events++] = event;
}

/* Makes the next piece of block `claimed`, which has one. The mutex is held, and released while
 * the rows are made. */
static void make_piece(fl_stream *stream, int64_t thread) {
    fl_slot *slot = fl_slot_of(stream, stream->claimed);
    int64_t number = stream->claimed, start = slot->next_row, stop = start + stream->piece_rows;
    stop = stop < slot->num_rows ? stop : slot->num_rows;
    slot->next_row = stop;
    stream->unclaimed_rows -= stop - start;
    pthread_mutex_unlock(&stream->mutex);
    int64_t start_ns = event_ns(stream);
    /* Rows from an invalid index on are not made. The consumer refuses the batch that has it
     * when its turn comes, and delivers those before it. */
    int64_t invalid = fl_find_invalid(fl_skip(slot->indices, start), stop - start, stream->num_rows);
    make_rows(stream, slot, start, invalid < 0 ? stop : start + invalid);
    int64_t stop_ns = event_ns(stream);
    pthread_mutex_lock(&stream->mutex);
    if (stream->plan.events) {
        int64_t batch = slot->first_batch + batch_of(slot, start);
        record(stream, (fl_event){thread, batch, start_ns, stop_ns});
    }
    /* Several pieces of the block may have an invalid index: the first one counts. */
    if (invalid >= 0 && start + invalid < slot->num_valid)
        slot->num_valid = start + invalid;
    slot->unfinished -= stop - start;
    /* A block after `head` is found complete when the consumer gets there. */
    if (!slot->unfinished && number == stream->head)
        pthread_cond_signal(&stream->ready);
}

/* Returns 1 if all pieces of a block are claimed, which does not mean that they are made. */
static int is_claimed(const fl_slot *slot) { return slot->next_row == slot->num_rows; }

int fl_work_once(fl_stream *stream, int64_t thread) {
    if (fl_is_halted(stream))
        return 0;
    while (stream->claimed < stream->tail &&
           is_claimed(fl_slot_of(stream, stream->claimed)))
        stream->claimed++;
    int has_piece = stream->claimed < stream->tail;
    /* A block is opened while each thread still has a piece to make. The consumer opens one only
     * if there is no piece: it makes batches because it waits for one. */
    int are_few = stream->unclaimed_rows <= stream->piece_rows * stream->plan.num_threads;
    if ((!has_piece || (are_few && thread)) && fl_can_open_block(stream)) {
        fl_open_block(stream);
        return 1;
    }
    if (has_piece)
        make_piece(stream, thread);
    return has_piece;
}

void fl_run_thread(void *argument) {
    fl_stream *stream = argument;
    pthread_mutex_lock(&stream->mutex);
    int64_t thread = ++stream->num_running;
    while (!fl_is_halted(stream)) {
        if (fl_work_once(stream, thread))
            continue;
        if (stream->is_ended)
            break; /* no further block, and every piece is claimed */
        pthread_cond_wait(&stream->work, &stream->mutex);
    }
    pthread_mutex_unlock(&stream->mutex);
}
