/* Opens, stops and closes the stream of an epoch's batches. Threads make batches ahead of the
 * consumer, which takes them, and which makes batches too before it waits. stream.h describes the
 * state that they share. */
#include "stream.h"
#include "timed_wait.h"

#include <stdlib.h>

/* The most batches of a block, which bounds the memory of a slot. */
enum { MAX_BATCHES = 4096 };
/* If three batches are larger than this, none is still in the cache when it is used. */
enum { CACHED_BYTES = 24 << 20 };

/* Sets the sizes of batches, pieces and blocks. No thread has begun yet. */
static void choose_sizes(fl_stream *stream) {
    const fl_plan *plan = &stream->plan;
    int64_t size = plan->batch_size ? plan->batch_size : 1, work_nbytes = 1;
    stream->num_rows = plan->columns[0].num_rows;
    if (size > stream->num_rows) /* No batch of an epoch has more rows than that. */
        size = stream->num_rows ? stream->num_rows : 1;
    for (int c = 0; c < plan->num_columns; c++) {
        const fl_column *column = &plan->columns[c];
        /* A conversion takes as long as the larger of its two sides. */
        int64_t more = column->source_nbytes > column->nbytes ? column->source_nbytes : column->nbytes;
        work_nbytes += more;
        stream->row_nbytes += column->nbytes;
        stream->batch_nbytes += (int64_t)fl_align((size_t)(size * column->nbytes));
    }
    stream->piece_rows = FL_PIECE_BYTES / work_nbytes + 1;
    stream->length = plan->order->length - plan->start;
    int64_t count = (int64_t)plan->block_nbytes / (stream->batch_nbytes + 1);
    /* An epoch that is shorter than a block needs no memory for a whole one. */
    int64_t needed = plan->order->kind == FL_FED ? count : stream->length / size + 1;
    count = count < needed ? count : needed;
    count = count < MAX_BATCHES ? count : MAX_BATCHES;
    stream->block_batches = count > 1 ? count : 1;
    /* Sizes that are fed differ: count_batches() limits a block by its rows. */
    if (!plan->batch_size) {
        stream->block_batches = MAX_BATCHES;
        stream->batch_nbytes = 0;
    }
    stream->bypasses = 3 * stream->batch_nbytes > CACHED_BYTES;
}

/* The first block is opened here while the threads wake up, unless one of them is faster. */
static void start_threads(fl_stream *stream) {
    fl_start_crew(stream->crew, fl_run_thread, stream);
    pthread_mutex_lock(&stream->mutex);
    if (fl_can_open_block(stream))
        fl_open_block(stream);
    pthread_mutex_unlock(&stream->mutex);
}

fl_stream *fl_open_stream(const fl_plan *plan) {
    fl_stream *stream = calloc(1, sizeof *stream);
    if (!stream)
        return NULL;
    stream->plan = *plan;
    /* max_blocks ahead, and the one that the consumer reads */
    stream->num_slots = plan->max_blocks + 1;
    stream->slots = calloc((size_t)stream->num_slots, sizeof *stream->slots);
    pthread_mutex_init(&stream->mutex, NULL);
    pthread_cond_init(&stream->work, NULL);
    fl_init_timed(&stream->ready);
    if (plan->num_threads)
        stream->crew = fl_take_crew(plan->pool, plan->num_threads);
    if (!stream->slots || (plan->num_threads && !stream->crew)) {
        fl_close_stream(stream);
        return NULL;
    }
    choose_sizes(stream);
    if (stream->crew)
        start_threads(stream);
    return stream;
}

/* May be called by any thread, also while another one waits in fl_next(). */
void fl_stop_stream(fl_stream *stream) {
    pthread_mutex_lock(&stream->mutex);
    stream->is_stopped = 1;
    pthread_cond_broadcast(&stream->work);
    pthread_cond_broadcast(&stream->ready);
    pthread_mutex_unlock(&stream->mutex);
}

/* Only the crew's threads may still use the stream: they are awaited. Batches keep their blocks. */
void fl_close_stream(fl_stream *stream) {
    pthread_mutex_lock(&stream->mutex);
    /* The threads of an epoch that was delivered to its end are left to the next one. Those of
     * an epoch that is left early end with it: nobody may begin another. */
    int is_whole = fl_next_step(stream) == FL_END && !stream->is_stopped;
    pthread_mutex_unlock(&stream->mutex);
    fl_stop_stream(stream);
    if (stream->crew)
        /* The threads use the stream until they have noticed is_stopped. */
        fl_await_crew(stream->crew);
    if (is_whole && stream->crew)
        fl_leave_crew(stream->plan.pool, stream->crew);
    else
        fl_close_crew(stream->crew);
    for (int64_t k = 0; stream->slots && k < stream->num_slots; k++) {
        fl_slot *slot = &stream->slots[k];
        if (slot->block)
            fl_release_block(slot->block);
        free(slot->scratch);
        free(slot->bounds);
        free(slot->places);
    }
    pthread_cond_destroy(&stream->ready);
    pthread_cond_destroy(&stream->work);
    pthread_mutex_destroy(&stream->mutex);
    free(stream->slots);
    free(stream->sizes);
    free(stream);
}
