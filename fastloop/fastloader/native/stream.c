/* The stream of an epoch's batches: made ahead by threads, and by the consumer before it waits.
 *
 * Batches are made in blocks, which are opened one after the other (indices read, memory taken) and
 * then filled piece by piece. Opening a block and making a piece are the two kinds of work; whoever
 * is free does the next one. One mutex guards all that is shared; work itself is done without it.
 * A block is the consumer's alone once all of its pieces are made.
 */
#if !defined(_POSIX_C_SOURCE)
#define _POSIX_C_SOURCE 200809L
#endif
#include "core.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PIECE_BYTES = 192 << 10, MAX_BATCHES = 4096, BLOCK_GROWTH = 4, MAX_FED_SIZES = 64 };
enum { MAX_FED_AHEAD = 4096 }; /* a sampler's indices are not read further ahead than needed */
/* Where three batches do not fit this, none is in the cache when it is used. */
enum { CACHED_BYTES = 24 << 20 };

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
} slot;

struct fl_stream {
    fl_plan plan;
    int64_t length;        /* indices to deliver, unless they are fed */
    int64_t batch_nbytes, row_nbytes, piece_rows, block_batches, num_rows;
    int bypasses;
    fl_crew *crew;         /* NULL: the consumer does everything */
    pthread_mutex_t mutex;
    pthread_cond_t work, ready;
    /* guarded by the mutex */
    slot *slots;           /* of blocks head to tail - 1, by number modulo num_slots */
    int64_t num_slots, head, tail, claimed; /* all pieces of the blocks before `claimed` are claimed */
    int64_t unclaimed_rows, next_index, num_opened, num_planned;
    int64_t num_events, num_running; /* threads that have begun */
    int64_t *sizes;        /* of the batches to come, where they are fed */
    int64_t num_sizes, sizes_room;
    int is_opening, is_ended, is_stopped, is_out_of_memory;
    /* the consumer's */
    int is_delivering;     /* block `head` */
    int64_t next_batch;
};

static slot *slot_of(fl_stream *stream, int64_t number) {
    return &stream->slots[number % stream->num_slots];
}

/* ---- opening a block ---- */

static int64_t num_unread(const fl_stream *stream) {
    const fl_order *order = stream->plan.order;
    return order->kind == FL_FED ? order->length - order->fed_begin
                                 : stream->length - stream->next_index;
}

static int is_fed_on(const fl_stream *stream) {
    return stream->plan.order->kind == FL_FED && !stream->plan.order->is_finished;
}

/* The first blocks are of one batch, so that the first batch is ready soon. */
static int64_t most_batches(const fl_stream *stream) {
    int64_t most = 1, level = stream->num_opened / (stream->plan.num_threads + 1);
    while (level-- > 0 && most < stream->block_batches)
        most *= BLOCK_GROWTH;
    return most < stream->block_batches ? most : stream->block_batches;
}

/* The number of batches that can be made now, of at most `most`; the last one may be short. */
static int64_t count_batches(const fl_stream *stream, int64_t most) {
    int64_t size = stream->plan.batch_size, unread = num_unread(stream);
    if (!size) {
        int64_t count = 0, rows = 0, limit = stream->plan.block_nbytes / (stream->row_nbytes + 1);
        while (count < stream->num_sizes && count < most && (!count || rows < limit))
            rows += stream->sizes[count++];
        return count;
    }
    int is_short = unread % size && !is_fed_on(stream) && !stream->plan.drop_last;
    int64_t count = unread / size + is_short;
    return count < most ? count : most;
}

static int can_open(const fl_stream *stream) {
    return !stream->is_opening && !stream->is_ended &&
           stream->tail - stream->head < stream->num_slots &&
           (!is_fed_on(stream) || count_batches(stream, 1));
}

static int reserve(slot *slot, int64_t num_rows, int64_t num_batches) {
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
static int64_t plan_slot(fl_stream *stream, slot *slot, int64_t num_batches) {
    int64_t size = stream->plan.batch_size, unread = num_unread(stream), rows = 0;
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

static int take_memory(const fl_stream *stream, slot *slot) {
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

static void open_block(fl_stream *stream) {
    int64_t count = count_batches(stream, most_batches(stream));
    if (!count) {
        stream->is_ended = 1;
        pthread_cond_broadcast(&stream->work);
        pthread_cond_signal(&stream->ready);
        return;
    }
    slot *slot = slot_of(stream, stream->tail);
    stream->is_opening = 1;
    int64_t start = plan_slot(stream, slot, count);
    pthread_mutex_unlock(&stream->mutex);
    int is_open = start >= 0 && take_memory(stream, slot);
    if (is_open && stream->plan.order->kind != FL_FED)
        slot->indices = fl_read_order(stream->plan.order, stream->plan.start + start,
                                      slot->num_rows, slot->room);
    pthread_mutex_lock(&stream->mutex);
    stream->is_opening = 0;
    if (is_open) {
        stream->tail++;
        stream->num_opened++;
        stream->unclaimed_rows += slot->num_rows;
    } else {
        stream->is_out_of_memory = 1;
    }
    pthread_cond_broadcast(&stream->work);
    pthread_cond_signal(&stream->ready);
}

/* ---- making pieces ---- */

/* The block's batch that a row is of. */
static int64_t batch_of(const slot *slot, int64_t row) {
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
static void make_rows(const fl_stream *stream, const slot *slot, int64_t start, int64_t stop) {
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
    slot *slot = slot_of(stream, stream->claimed);
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

/* Do one piece of work, where there is any; thread 0 is the consumer. */
static int work_once(fl_stream *stream, int64_t thread) {
    if (stream->is_stopped || stream->is_out_of_memory)
        return 0;
    while (stream->claimed < stream->tail &&
           slot_of(stream, stream->claimed)->next_row == slot_of(stream, stream->claimed)->num_rows)
        stream->claimed++;
    int has_piece = stream->claimed < stream->tail;
    /* opened early enough that nobody runs out of pieces meanwhile */
    int are_few = stream->unclaimed_rows <= stream->piece_rows * stream->plan.num_threads;
    if ((!has_piece || (are_few && thread)) && can_open(stream)) {
        open_block(stream);
        return 1;
    }
    if (has_piece)
        make_piece(stream, thread);
    return has_piece;
}

static void run_thread(void *argument) {
    fl_stream *stream = argument;
    pthread_mutex_lock(&stream->mutex);
    int64_t thread = ++stream->num_running;
    while (!stream->is_stopped && !stream->is_out_of_memory) {
        if (work_once(stream, thread))
            continue;
        if (stream->is_ended)
            break; /* every piece is claimed */
        pthread_cond_wait(&stream->work, &stream->mutex);
    }
    pthread_mutex_unlock(&stream->mutex);
}

/* ---- the consumer ---- */

static void retire_head(fl_stream *stream) {
    fl_release_block(slot_of(stream, stream->head)->block);
    slot_of(stream, stream->head)->block = NULL;
    stream->head++;
    stream->is_delivering = 0;
    pthread_cond_signal(&stream->work);
}

static fl_status deliver(fl_stream *stream, fl_batch *batch) {
    slot *slot = slot_of(stream, stream->head);
    int64_t k = stream->next_batch++;
    if (slot->bounds[k + 1] > slot->num_valid) {
        batch->invalid_index = fl_index(slot->indices, slot->num_valid);
        stream->next_batch = k; /* asked again, the answer is the same */
        return FL_INVALID_INDEX;
    }
    batch->block = slot->block;
    batch->memory = slot->block->memory + slot->places[k];
    batch->num_rows = slot->bounds[k + 1] - slot->bounds[k];
    return FL_READY;
}

/* True where little is left of what has been fed: less than a block, and than MAX_FED_AHEAD. */
static int is_starved(const fl_stream *stream) {
    int64_t unread = num_unread(stream), size = stream->plan.batch_size;
    int64_t block = stream->block_batches * size;
    if (!is_fed_on(stream))
        return 0;
    if (size)
        return unread < size || (unread < block && unread < MAX_FED_AHEAD);
    int is_short = unread * stream->row_nbytes < (int64_t)stream->plan.block_nbytes;
    return !stream->num_sizes || (is_short && unread < MAX_FED_AHEAD &&
                                  stream->num_sizes < MAX_FED_SIZES);
}

/* The state with the mutex held; FL_READY: block `head` is complete. */
static fl_status look(fl_stream *stream) {
    if (stream->is_stopped)
        return FL_END;
    if (is_starved(stream))
        return FL_STARVED;
    if (stream->head < stream->tail && !slot_of(stream, stream->head)->unfinished)
        return FL_READY;
    if (stream->is_out_of_memory)
        return FL_NO_MEMORY;
    return stream->is_ended && stream->head == stream->tail ? FL_END : FL_WAITING;
}

static fl_status begin_block(fl_stream *stream, fl_status status, fl_batch *batch) {
    pthread_mutex_unlock(&stream->mutex);
    if (status != FL_READY)
        return status;
    stream->is_delivering = 1;
    stream->next_batch = 0;
    return deliver(stream, batch);
}

fl_status fl_try_next(fl_stream *stream, fl_batch *batch) {
    if (stream->is_delivering &&
        stream->next_batch < slot_of(stream, stream->head)->num_batches)
        return deliver(stream, batch);
    pthread_mutex_lock(&stream->mutex);
    if (stream->is_delivering)
        retire_head(stream);
    return begin_block(stream, look(stream), batch);
}

static void wait_for(fl_stream *stream, int wait_ms) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += wait_ms * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    pthread_cond_timedwait(&stream->ready, &stream->mutex, &until);
}

fl_status fl_next(fl_stream *stream, int wait_ms, fl_batch *batch) {
    pthread_mutex_lock(&stream->mutex);
    fl_status status = look(stream);
    while (status == FL_WAITING && work_once(stream, 0))
        status = look(stream);
    if (status == FL_WAITING) {
        wait_for(stream, wait_ms);
        status = look(stream);
    }
    return begin_block(stream, status, batch);
}

int fl_feed(fl_stream *stream, fl_indices indices, int64_t count, const int64_t *sizes,
            int64_t num_sizes) {
    pthread_mutex_lock(&stream->mutex);
    int is_fed = fl_feed_order(stream->plan.order, indices, count);
    if (is_fed && stream->num_sizes + num_sizes > stream->sizes_room) {
        int64_t room = 2 * (stream->num_sizes + num_sizes);
        int64_t *grown = realloc(stream->sizes, (size_t)room * sizeof *grown);
        is_fed = grown != NULL;
        stream->sizes = grown ? grown : stream->sizes;
        stream->sizes_room = grown ? room : stream->sizes_room;
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

/* ---- begin and end ---- */

static void choose_sizes(fl_stream *stream) {
    const fl_plan *plan = &stream->plan;
    int64_t size = plan->batch_size ? plan->batch_size : 1, work_nbytes = 1;
    stream->num_rows = plan->columns[0].num_rows;
    if (size > stream->num_rows) /* for these estimates: no batch of an epoch has more */
        size = stream->num_rows ? stream->num_rows : 1;
    for (int c = 0; c < plan->num_columns; c++) {
        const fl_column *column = &plan->columns[c];
        int64_t more = column->source_nbytes > column->nbytes ? column->source_nbytes : column->nbytes;
        work_nbytes += more;
        stream->row_nbytes += column->nbytes;
        stream->batch_nbytes += (int64_t)fl_align((size_t)(size * column->nbytes));
    }
    stream->piece_rows = PIECE_BYTES / work_nbytes + 1;
    stream->length = plan->order->length - plan->start;
    int64_t count = (int64_t)plan->block_nbytes / (stream->batch_nbytes + 1);
    int64_t needed = plan->order->kind == FL_FED ? count : stream->length / size + 1;
    count = count < needed ? count : needed;
    count = count < MAX_BATCHES ? count : MAX_BATCHES;
    stream->block_batches = count > 1 ? count : 1;
    if (!plan->batch_size) {
        stream->block_batches = MAX_BATCHES;
        stream->batch_nbytes = 0;
    }
    stream->bypasses = 3 * stream->batch_nbytes > CACHED_BYTES;
}

fl_stream *fl_open_stream(const fl_plan *plan) {
    fl_stream *stream = calloc(1, sizeof *stream);
    if (!stream)
        return NULL;
    stream->plan = *plan;
    stream->num_slots = plan->max_blocks + 1; /* and the consumer's */
    stream->slots = calloc((size_t)stream->num_slots, sizeof *stream->slots);
    pthread_mutex_init(&stream->mutex, NULL);
    pthread_cond_init(&stream->work, NULL);
    pthread_cond_init(&stream->ready, NULL);
    if (plan->num_threads)
        stream->crew = fl_take_crew(plan->pool, plan->num_threads);
    if (!stream->slots || (plan->num_threads && !stream->crew)) {
        fl_close_stream(stream);
        return NULL;
    }
    choose_sizes(stream);
    if (stream->crew)
        fl_start_crew(stream->crew, run_thread, stream);
    return stream;
}

void fl_stop_stream(fl_stream *stream) {
    pthread_mutex_lock(&stream->mutex);
    stream->is_stopped = 1;
    pthread_cond_broadcast(&stream->work);
    pthread_cond_broadcast(&stream->ready);
    pthread_mutex_unlock(&stream->mutex);
}

void fl_close_stream(fl_stream *stream) {
    pthread_mutex_lock(&stream->mutex);
    int is_whole = look(stream) == FL_END && !stream->is_stopped;
    pthread_mutex_unlock(&stream->mutex);
    fl_stop_stream(stream);
    if (stream->crew)
        fl_await_crew(stream->crew);
    if (is_whole && stream->crew)
        fl_leave_crew(stream->plan.pool, stream->crew);
    else
        fl_close_crew(stream->crew);
    for (int64_t k = 0; stream->slots && k < stream->num_slots; k++) {
        slot *slot = &stream->slots[k];
        if (slot->block)
            fl_release_block(slot->block);
        free(slot->room);
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
