/* The work on a stream, which its threads and the consumer share: pieces of blocks are made, and the
 * next blocks opened in time. */
#if !defined(_POSIX_C_SOURCE)
#define _POSIX_C_SOURCE 200809L
#endif
#include "stream.h"

#include <time.h>

/* The block's batch that a row is of. */
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

/* Make the rows start to stop - 1 of a block, whose indices are valid. */
static void make_rows(const fl_stream *stream, const fl_slot *slot, int64_t start, int64_t stop) {
    int64_t batch = batch_of(slot, start);
    for (int64_t row = start; row < stop; batch++) {
        int64_t first = slot->bounds[batch], last = slot->bounds[batch + 1];
        int64_t until = last < stop ? last : stop;
        char *memory = slot->block->memory + slot->places[batch];
        fl_span span = {until - row, stop - until, row == start, stream->bypasses};
        for (int c = 0; c < stream->plan.num_columns; c++) {
            const fl_column *column = &stream->plan.columns[c];
            fl_make_rows(column, fl_skip(slot->indices, row), span,
                         memory + (row - first) * column->nbytes);
            memory += fl_align((size_t)((last - first) * column->nbytes));
        }
        row = until;
    }
    if (stream->bypasses)
        fl_finish_stores();
}

/* The time on the clock of Python's time.perf_counter_ns; 0 where nothing is recorded. */
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

static void record(fl_stream *stream, fl_event event) {
    if (stream->num_events < stream->plan.max_events)
        stream->plan.events[stream->num_events++] = event;
}

static void make_piece(fl_stream *stream, int64_t thread) {
    fl_slot *slot = fl_slot_of(stream, stream->claimed);
    int64_t number = stream->claimed, start = slot->next_row, stop = start + stream->piece_rows;
    stop = stop < slot->num_rows ? stop : slot->num_rows;
    slot->next_row = stop;
    stream->unclaimed_rows -= stop - start;
    pthread_mutex_unlock(&stream->mutex);
    int64_t start_ns = event_ns(stream);
    int64_t invalid = fl_find_invalid(fl_skip(slot->indices, start), stop - start, stream->num_rows);
    make_rows(stream, slot, start, invalid < 0 ? stop : start + invalid);
    int64_t stop_ns = event_ns(stream);
    pthread_mutex_lock(&stream->mutex);
    if (stream->plan.events) {
        int64_t batch = slot->first_batch + batch_of(slot, start);
        record(stream, (fl_event){thread, batch, start_ns, stop_ns});
    }
    if (invalid >= 0 && start + invalid < slot->num_valid)
        slot->num_valid = start + invalid;
    slot->unfinished -= stop - start;
    if (!slot->unfinished && number == stream->head)
        pthread_cond_signal(&stream->ready);
}

static int is_claimed(const fl_slot *slot) { return slot->next_row == slot->num_rows; }

int fl_work_once(fl_stream *stream, int64_t thread) {
    if (fl_is_halted(stream))
        return 0;
    while (stream->claimed < stream->tail &&
           is_claimed(fl_slot_of(stream, stream->claimed)))
        stream->claimed++;
    int has_piece = stream->claimed < stream->tail;
    /* opened early enough that nobody runs out of pieces meanwhile */
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
            break; /* every piece is claimed */
        pthread_cond_wait(&stream->work, &stream->mutex);
    }
    pthread_mutex_unlock(&stream->mutex);
}
