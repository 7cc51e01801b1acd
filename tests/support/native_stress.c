/* Streams of the native core under stress, to be compiled with sanitizers: epochs of every order and
 * of random sizes, batches that are held, checked and given back by another thread, early ends. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"

enum { NUM_ROWS = 3000, ROW = 24, FACTORS = 3, QUEUE = 64 };

static uint64_t random_state = 1;
static int32_t labels[NUM_ROWS];
static unsigned char rows[NUM_ROWS][ROW];
static const float factor[FACTORS] = {0.5f, 2, 3}, offset[FACTORS] = {1, -1, 0};
static uint32_t tables[4][64];

static int64_t random_below(int64_t limit) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((random_state >> 33) % (uint64_t)limit);
}

static void fail(const char *reason) {
    fprintf(stderr, "%s\n", reason);
    abort();
}

/* ---- a thread that gives batches back ---- */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static fl_batch queue[QUEUE];
static int num_queued, is_over;

static void check_batch(const fl_batch *batch) {
    const int32_t *label = (const int32_t *)batch->memory;
    const char *second = batch->memory + fl_align((size_t)batch->num_rows * sizeof *label);
    const float *floats = (const float *)(second + fl_align((size_t)batch->num_rows * ROW));
    for (int64_t k = 0; k < batch->num_rows; k++) {
        int32_t index = label[k];
        if (index < 0 || index >= NUM_ROWS || memcmp(second + k * ROW, rows[index], ROW))
            fail("a row is not the one of its label");
        for (int item = 0; item < ROW; item++) {
            float product = (float)rows[index][item] * factor[item % FACTORS];
            int place = item % FACTORS * (ROW / FACTORS) + item / FACTORS;
            if (floats[k * ROW + place] != product + offset[item % FACTORS])
                fail("a converted row is wrong");
        }
    }
}

static void *give_back(void *ignored) {
    (void)ignored;
    for (;;) {
        pthread_mutex_lock(&mutex);
        while (!num_queued && !is_over)
            pthread_cond_wait(&changed, &mutex);
        int has_batch = num_queued > 0;
        fl_batch batch = queue[has_batch ? --num_queued : 0];
        pthread_mutex_unlock(&mutex);
        if (!has_batch)
            return NULL;
        check_batch(&batch);
        fl_release_block(batch.block);
    }
}

static void hand_over(const fl_batch *batch) {
    check_batch(batch);
    fl_hold_block(batch->block);
    pthread_mutex_lock(&mutex);
    int has_room = num_queued < QUEUE;
    if (has_room)
        queue[num_queued++] = *batch;
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(&mutex);
    if (!has_room)
        fl_release_block(batch->block);
}

/* ---- epochs ---- */

static void feed(fl_stream *stream, int has_sizes) {
    int64_t indices[300], sizes[10];
    for (int64_t k = 0; k < 300; k++)
        indices[k] = random_below(NUM_ROWS);
    for (int64_t k = 0; k < 10; k++)
        sizes[k] = 30;
    if (!fl_feed(stream, (fl_indices){indices, 8}, 300, sizes, has_sizes ? 10 : 0))
        fail("no memory to feed");
}

static void run_epoch(const fl_column *columns, fl_pool *pool, int64_t *array) {
    fl_order order = {.kind = (fl_order_kind)random_below(5), .num_samples = NUM_ROWS};
    order.world_size = 1 + random_below(3);
    order.rank = random_below(order.world_size);
    order.length = (NUM_ROWS + order.world_size - 1) / order.world_size;
    order.array = (fl_indices){array, 8};
    order.num_rows = order.num_columns = 64;
    for (int k = 0; k < 4; k++)
        order.tables[k] = tables[k];
    if (order.kind == FL_FED)
        order.length = 0;
    order.seed = (uint32_t)random_below(1000);
    if (!fl_open_order(&order, random_below(2) ? pool : NULL))
        fail("no memory for the order");
    int has_sizes = order.kind == FL_FED && random_below(2), num_feeds = (int)random_below(8);
    fl_plan plan = {.columns = columns, .num_columns = 3, .order = &order, .pool = pool};
    plan.batch_size = has_sizes ? 0 : 1 + random_below(200);
    plan.drop_last = (int)random_below(2);
    plan.num_threads = (int)random_below(4);
    plan.block_nbytes = (size_t)random_below(40000);
    plan.max_blocks = 1 + (int)random_below(4);
    int64_t wrong = order.kind == FL_ARRAY && random_below(2) ? random_below(NUM_ROWS / 3) : -1;
    int64_t right = wrong < 0 ? 0 : array[wrong];
    if (wrong >= 0)
        array[wrong] = random_below(2) ? NUM_ROWS : INT64_MIN;
    fl_stream *stream = fl_open_stream(&plan);
    int64_t most = random_below(3) ? INT64_MAX : random_below(20), count = 0;
    while (count < most) {
        fl_batch batch;
        fl_status status = fl_try_next(stream, &batch);
        while (status == FL_WAITING)
            status = fl_next(stream, 1, &batch);
        if (status == FL_STARVED && num_feeds-- > 0)
            feed(stream, has_sizes);
        else if (status == FL_STARVED)
            fl_finish_feed(stream);
        else if (status == FL_READY)
            hand_over(&batch), count++;
        else if (status == FL_END || (status == FL_INVALID_INDEX && wrong >= 0))
            break;
        else
            fail("an epoch failed");
    }
    fl_close_stream(stream);
    if (wrong >= 0)
        array[wrong] = right;
    fl_close_order(&order);
}

int main(int count, char **arguments) {
    int num_epochs = count > 1 ? atoi(arguments[1]) : 300;
    static int64_t array[NUM_ROWS];
    for (int64_t k = 0; k < NUM_ROWS; k++) {
        labels[k] = (int32_t)k;
        array[k] = random_below(NUM_ROWS);
        for (int item = 0; item < ROW; item++)
            rows[k][item] = (unsigned char)random_below(256);
    }
    for (int k = 0; k < 4 * 64; k++)
        tables[k / 64][k % 64] = (uint32_t)random_below(64);
    fl_column columns[3] = {
        {.base = (const char *)labels, .num_rows = NUM_ROWS, .stride = 4, .source_nbytes = 4,
         .nbytes = 4},
        {.base = (const char *)rows, .num_rows = NUM_ROWS, .stride = ROW, .source_nbytes = ROW,
         .nbytes = ROW},
        {.base = (const char *)rows, .num_rows = NUM_ROWS, .stride = ROW, .source_nbytes = ROW,
         .nbytes = 4 * ROW, .source = FL_U8, .target = FL_F32, .channels = FACTORS,
         .pixels = ROW / FACTORS, .source_hwc = 1, .num_factors = FACTORS, .factor = factor,
         .offset = offset},
    };
    if (!fl_prepare_conversion(&columns[2]))
        fail("no memory for the conversion");
    pthread_t giver;
    pthread_create(&giver, NULL, give_back, NULL);
    for (int epoch = 0; epoch < num_epochs; epoch++) {
        fl_pool *pool = fl_open_pool((size_t)random_below(300000));
        run_epoch(columns, pool, array);
        run_epoch(columns, pool, array);
        fl_release_pool(pool);
    }
    pthread_mutex_lock(&mutex);
    is_over = 1;
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(&mutex);
    pthread_join(giver, NULL);
    fl_release_conversion(&columns[2]);
    printf("%d epochs\n", num_epochs);
    return 0;
}
