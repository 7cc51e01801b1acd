/* The state of a stream, and the work on it that its threads and the consumer share.
 *
 * Batches are made in blocks. A block is opened (indices read, memory taken), then filled piece by
 * piece, and then its batches are delivered one by one. Opening a block and making a piece are the
 * two kinds of work; whoever is free does the next one. One block at a time is opened, in their
 * order (is_opening); pieces of several blocks are made at once.
 *
 * One mutex guards all that is shared; the work itself is done without it. Slots are a ring: blocks
 * `head` to tail - 1 are open, and block `tail` belongs to whoever opens it. A piece belongs to the
 * thread that has claimed it, by moving next_row. Block `head` is the consumer's alone when all of
 * its pieces are made (unfinished is 0): only the consumer changes `head`, and reads the block
 * without the mutex.
 *
 * Two conditions are waited for: `work` by threads, until a block can be opened or has unclaimed
 * pieces, and `ready` by the consumer, until block `head` is complete or never will be.
 */
#ifndef FASTLOOP_STREAM_H
#define FASTLOOP_STREAM_H

#include <pthread.h>

#include "core.h"

/* A block in the making: its memory is lent to batches, all else is used again for a later
 * block. */
typedef struct {
    fl_block *block;
    int64_t *scratch;      /* memory for num_rows indices, if the order has none of its own */
    int64_t scratch_capacity; /* in indices */
    fl_indices indices;
    int64_t first_batch;   /* its number in the stream */
    int64_t num_batches, batches_length;
    int64_t *bounds;       /* num_batches + 1: the first row of each batch, and the end */
    size_t *places;        /* offset of each batch in the block's memory */
    int64_t num_rows;
    int64_t next_row;      /* the first row of the next piece */
    int64_t unfinished;    /* rows */
    int64_t num_valid;     /* rows before the first invalid index */
} fl_slot;

struct fl_stream {
    fl_plan plan;
    int64_t length;        /* indices to deliver, unless they are fed */
    int64_t batch_nbytes, row_nbytes, piece_rows, block_batches, num_rows;
    int bypasses;
    fl_crew *crew;         /* NULL: the consumer does everything */
    pthread_mutex_t mutex;
    pthread_cond_t work, ready;
    /* guarded by the mutex */
    fl_slot *slots;        /* block `number` is in slot number % num_slots */
    int64_t num_slots, head, tail, claimed; /* blocks before `claimed` have no unclaimed pieces */
    int64_t unclaimed_rows, next_index, num_opened, num_planned;
    int64_t num_events, num_running; /* num_running: threads that have begun */
    int64_t *sizes;        /* sizes of the batches to come, if they are fed */
    int64_t num_sizes, sizes_capacity;
    int is_opening, is_ended, is_stopped, is_out_of_memory, is_cut_off;
    int cut_column;        /* if is_cut_off: the column of the shortened file */
    /* the consumer's */
    int is_delivering;     /* block `head` */
    int64_t next_batch;
};

FL_ALWAYS_INLINE fl_slot *fl_slot_of(const fl_stream *stream, int64_t number) {
    return &stream->slots[number % stream->num_slots];
}

/* Returns 1 if no more rows are made. The mutex is held. */
FL_ALWAYS_INLINE int fl_is_halted(const fl_stream *stream) {
    return stream->is_stopped || stream->is_out_of_memory || stream->is_cut_off;
}

/* All of the following functions but fl_run_thread are called with the mutex held. */

/* ---- the rest of the order: stream_feed.c ---- */

int64_t fl_num_unread(const fl_stream *stream);
/* Returns 1 if more indices may be fed. */
int fl_is_fed_on(const fl_stream *stream);
/* Returns 1 if more indices must be fed, so that the threads do not run out of them. */
int fl_is_starved(const fl_stream *stream);

/* ---- blocks: stream_blocks.c ---- */

int fl_can_open_block(const fl_stream *stream);
/* Opens the next block, or notes that there is none. fl_can_open_block() must be true. The mutex
 * is released meanwhile. */
void fl_open_block(fl_stream *stream);

/* ---- work: stream_work.c ---- */

/* Does one piece of work; thread 0 is the consumer. Returns 0 if there is none. The mutex is
 * released meanwhile. */
int fl_work_once(fl_stream *stream, int64_t thread);
/* Runs in each thread of the crew, until all pieces are claimed or the stream is halted. It
 * takes the mutex. */
void fl_run_thread(void *stream);

/* ---- the consumer: stream_consumer.c ---- */

/* Returns the next step of the consumer; FL_READY: block `head` is complete. */
fl_status fl_next_step(const fl_stream *stream);

#endif
