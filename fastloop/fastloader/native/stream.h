/* The state of a stream, and the work on it that stream.c's functions share out.
 *
 * Batches are made in blocks, which are opened one after the other (indices read, memory taken) and
 * then filled piece by piece. Opening a block and making a piece are the two kinds of work; whoever
 * is free does the next one. One mutex guards all that is shared; work itself is done without it.
 * A block is the consumer's alone once all of its pieces are made.
 */
#ifndef FASTLOOP_STREAM_H
#define FASTLOOP_STREAM_H

#include <pthread.h>

#include "core.h"

/* A block in the making: its memory is lent to batches, all else is used again for a later one. */
typedef struct {
    fl_block *block;
    int64_t *room;         /* for num_rows indices */
    int64_t room_length;
    fl_indices indices;
    int64_t first_batch;   /* its number in the stream */
    int64_t num_batches, batches_length;
    int64_t *bounds;       /* num_batches + 1: the first row of each batch, and the end */
    size_t *places;        /* of each batch in the block's memory */
    int64_t num_rows;
    int64_t next_row;      /* the first row of the next piece */
    int64_t unfinished;    /* rows */
    int64_t num_valid;     /* rows in front of the first invalid index */
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
    fl_slot *slots;        /* of blocks head to tail - 1, by number modulo num_slots */
    int64_t num_slots, head, tail, claimed; /* all pieces of blocks before `claimed` are claimed */
    int64_t unclaimed_rows, next_index, num_opened, num_planned;
    int64_t num_events, num_running; /* threads that have begun */
    int64_t *sizes;        /* of the batches to come, where they are fed */
    int64_t num_sizes, sizes_room;
    int is_opening, is_ended, is_stopped, is_out_of_memory, is_cut_off;
    int cut_column;        /* where is_cut_off: whose file has become shorter */
    /* the consumer's */
    int is_delivering;     /* block `head` */
    int64_t next_batch;
};

FL_ALWAYS_INLINE fl_slot *fl_slot_of(const fl_stream *stream, int64_t number) {
    return &stream->slots[number % stream->num_slots];
}

/* 1 where no more rows are made. */
FL_ALWAYS_INLINE int fl_is_halted(const fl_stream *stream) {
    return stream->is_stopped || stream->is_out_of_memory || stream->is_cut_off;
}

/* Of the following, all but fl_run_thread are called with the mutex held. */

/* ---- what is left of the order: stream_feed.c ---- */

int64_t fl_num_unread(const fl_stream *stream);
/* 1 where more indices may be fed. */
int fl_is_fed_on(const fl_stream *stream);
/* 1 where more indices have to be fed, before work ends for want of them. */
int fl_is_starved(const fl_stream *stream);

/* ---- blocks: stream_blocks.c ---- */

int fl_can_open_block(const fl_stream *stream);
/* Open the next block, or note that there is none; the mutex is released meanwhile. */
void fl_open_block(fl_stream *stream);

/* ---- work: stream_work.c ---- */

/* Do one piece of work, where there is any; thread 0 is the consumer. The mutex is released
 * meanwhile. */
int fl_work_once(fl_stream *stream, int64_t thread);
/* What a thread of the stream runs, from begin to end; it takes the mutex. */
void fl_run_thread(void *stream);

/* ---- the consumer: stream_consumer.c ---- */

/* FL_READY: block `head` is complete. */
fl_status fl_look(const fl_stream *stream);

#endif
