/* Delivers batches of complete blocks to a stream's consumer, in order, or waits for the next. */
#include "stream.h"
#include "timed_wait.h"

/* Gives block `head` back: the batches that were delivered of it hold its memory. The mutex is
 * held. Its slot is free now, so that a thread may open another block. */
static void retire_head(fl_stream *stream) {
    fl_release_block(fl_slot_of(stream, stream->head)->block);
    fl_slot_of(stream, stream->head)->block = NULL;
    stream->head++;
    stream->is_delivering = 0;
    pthread_cond_signal(&stream->work);
}

/* Hands out the next batch of block `head`, which is complete, without the mutex. */
static fl_status deliver(fl_stream *stream, fl_batch *batch) {
    fl_slot *slot = fl_slot_of(stream, stream->head);
    int64_t k = stream->next_batch++;
    if (slot->bounds[k + 1] > slot->num_valid) {
        batch->invalid_index = fl_index(slot->indices, slot->num_valid);
        stream->next_batch = k; /* the next call gives the same answer */
        return FL_INVALID_INDEX;
    }
    batch->block = slot->block;
    batch->memory = slot->block->memory + slot->places[k];
    batch->num_rows = slot->bounds[k + 1] - slot->bounds[k];
    return FL_READY;
}

fl_status fl_next_step(const fl_stream *stream) {
    /* The order of these tests counts: indices are asked for while complete blocks are left, so
     * that threads go on; and batches made before an error are delivered before it. */
    if (stream->is_stopped)
        return FL_END;
    if (fl_is_starved(stream))
        return FL_STARVED;
    if (stream->head < stream->tail && !fl_slot_of(stream, stream->head)->unfinished)
        return FL_READY;
    if (stream->is_cut_off)
        return FL_CUT_OFF;
    if (stream->is_out_of_memory)
        return FL_NO_MEMORY;
    return stream->is_ended && stream->head == stream->tail ? FL_END : FL_WAITING;
}

/* Releases the mutex, and delivers the first batch of block `head` if the status is FL_READY. */
static fl_status begin_block(fl_stream *stream, fl_status status, fl_batch *batch) {
    batch->column = stream->cut_column;
    pthread_mutex_unlock(&stream->mutex);
    if (status != FL_READY)
        return status;
    stream->is_delivering = 1;
    stream->next_batch = 0;
    return deliver(stream, batch);
}

/* Called by the consumer: one thread at a time. */
fl_status fl_try_next(fl_stream *stream, fl_batch *batch) {
    /* The rest of a block that is being delivered is the consumer's: no lock, and no wait. */
    if (stream->is_delivering &&
        stream->next_batch < fl_slot_of(stream, stream->head)->num_batches)
        return deliver(stream, batch);
    pthread_mutex_lock(&stream->mutex);
    if (stream->is_delivering)
        retire_head(stream);
    return begin_block(stream, fl_next_step(stream), batch);
}

fl_status fl_next(fl_stream *stream, int wait_ms, fl_batch *batch) {
    pthread_mutex_lock(&stream->mutex);
    fl_status status = fl_next_step(stream);
    /* The consumer works instead of waiting, until its batch is ready or there is no work. */
    while (status == FL_WAITING && fl_work_once(stream, 0))
        status = fl_next_step(stream);
    if (status == FL_WAITING) {
        /* The state, not the return value, shows why the wait ended. */
        (void)fl_wait_ms(&stream->ready, &stream->mutex, wait_ms);
        status = fl_next_step(stream);
    }
    return begin_block(stream, status, batch);
}
