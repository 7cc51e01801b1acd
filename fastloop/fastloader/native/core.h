/* The native core of FastLoader: rows by index, conversion, orders, and the stream of an epoch.
 *
 * Nothing here uses Python; bindings/ makes the Python module of it. Threads of a stream never wait
 * for an interpreter, and a batch is given back by a plain C function that any thread may call.
 */
#ifndef FASTLOOP_CORE_H
#define FASTLOOP_CORE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define FL_ALIGNMENT 64 /* bytes, to which each column of a batch is aligned: a cache line */
/* Rows are made (copied or converted) in pieces of about this size, a fraction of the second-level
 * cache. */
#define FL_PIECE_BYTES (192 << 10)
#define FL_ALWAYS_INLINE static inline __attribute__((always_inline))

/* ---- columns: gather.c and convert.c ---- */

typedef enum {
    FL_BYTES, /* rows of any type, copied as they are */
    FL_U8, FL_I8, FL_U16, FL_I16, FL_U32, FL_I32, FL_I64, FL_F16, FL_BF16, FL_F32, FL_F64,
    FL_NUM_TYPES
} fl_type;

typedef struct {
    const char *base;       /* address of row 0; if positions > 0: of item 0 */
    int64_t num_rows;
    int64_t stride;         /* bytes from row to row; if positions > 0: from item to item */
    uint64_t positions;     /* > 0: row i begins at one of these items, see row_of() in gather.c */
    uint64_t seed;
    int64_t source_nbytes;  /* size of a stored row */
    int64_t nbytes;         /* size of a delivered row */
    fl_type source, target; /* both are FL_BYTES if rows are copied */
    int64_t channels, pixels;      /* a converted row has channels * pixels items */
    int source_hwc, target_hwc;    /* 1: the channel is the last dimension */
    int64_t num_factors;           /* 0: integers that keep their values; 1; or `channels` */
    const float *factor, *offset;  /* num_factors each */
    float *cycle;                  /* factors and offsets repeated, see convert.c; owned */
    int64_t cycle_length;
    const char *path;       /* file that is mapped at `base`; NULL: there is none that can shrink */
    uint64_t device, inode; /* identify that file; the path may now be another's */
    int64_t end;            /* bytes that the file must have */
} fl_column;

/* Some indices of an order: `width` is 4 or 8 bytes. */
typedef struct {
    const void *data;
    int width;
} fl_indices;

FL_ALWAYS_INLINE int64_t fl_index(fl_indices indices, int64_t k) {
    return indices.width == 4 ? ((const int32_t *)indices.data)[k]
                              : ((const int64_t *)indices.data)[k];
}

FL_ALWAYS_INLINE fl_indices fl_skip(fl_indices indices, int64_t count) {
    return (fl_indices){(const char *)indices.data + count * indices.width, indices.width};
}

/* Returns the position of the first index outside of [0, num_rows), or -1. Every index passes
 * this check before a row is made of it: fl_make_rows() itself checks nothing. */
int64_t fl_find_invalid(fl_indices indices, int64_t count, int64_t num_rows);

/* Which rows to make, and how. `ahead` more indices follow in the same array, which have been
 * checked too: their rows are prefetched. */
typedef struct {
    int64_t count, ahead;
    int begins;    /* 1: none of these rows has been prefetched yet */
    int bypasses;  /* 1: stores bypass the cache; call fl_finish_stores() afterwards */
} fl_span;

void fl_make_rows(const fl_column *column, fl_indices indices, fl_span span, char *out);
void fl_copy_bypassing(char *out, const char *row, size_t nbytes);
void fl_finish_stores(void);

/* Returns 0 if there is no memory. */
int fl_prepare_conversion(fl_column *column);
void fl_release_conversion(fl_column *column);
void fl_convert_row(const fl_column *column, const char *row, char *out, int bypasses);

/* ---- mapped files: files.c ---- */

/* Returns 1 if the column's file has become shorter than its rows. */
int fl_is_cut_off(const fl_column *column);
/* Returns the position of the first such column, or -1. */
int fl_find_cut_off(const fl_column *columns, int num_columns);

/* ---- memory: memory.c ---- */

typedef struct fl_pool fl_pool;

/* Memory of some batches. It returns to its pool when the last reference is dropped. */
typedef struct fl_block {
    struct fl_block *next;
    fl_pool *pool;
    atomic_int references;
    char *memory;
    size_t nbytes;
} fl_block;

fl_pool *fl_open_pool(size_t max_free_nbytes);
void fl_release_pool(fl_pool *pool);
/* Returns a block of at least nbytes with one reference, or NULL if there is no memory. */
fl_block *fl_take_block(fl_pool *pool, size_t nbytes);
void fl_hold_block(fl_block *block);
void fl_release_block(fl_block *block);
size_t fl_free_nbytes(fl_pool *pool);

/* ---- threads: crew.c ---- */

typedef struct fl_crew fl_crew;

/* Threads start with their first work. Returns NULL if there is no memory. */
fl_crew *fl_open_crew(int num_threads);
/* Returns 1 if the crew has this many threads, in this process. */
int fl_is_crew_of(const fl_crew *crew, int num_threads);
/* Every thread calls work(argument) once. fl_await_crew() returns when all calls have returned. */
void fl_start_crew(fl_crew *crew, void (*work)(void *), void *argument);
void fl_await_crew(fl_crew *crew);
/* Joins the threads, which must be idle. NULL, and a crew of the process before a fork, are left
 * alone. */
void fl_close_crew(fl_crew *crew);

/* Returns the crew that an earlier epoch has left in the pool, or a new one. */
fl_crew *fl_take_crew(fl_pool *pool, int num_threads);
/* Leave an idle crew to later epochs. The pool's owner has not released it yet. */
void fl_leave_crew(fl_pool *pool, fl_crew *crew);

/* ---- orders: order.c ---- */

typedef enum { FL_ARRAY, FL_SEQUENTIAL, FL_RANDPERM, FL_FEISTEL, FL_FED } fl_order_kind;

typedef struct {
    uint32_t state[624];
    int used;
} fl_twister;

typedef struct {
    fl_order_kind kind;
    int64_t num_samples;
    int64_t length;             /* number of this rank's indices; FL_FED: fed so far */
    int64_t rank, world_size;   /* this rank has every world_size-th index, repeating the first */
    fl_indices array;           /* FL_ARRAY */
    uint32_t seed;              /* FL_RANDPERM */
    int32_t *permutation;       /* final up to `drawn` */
    fl_block *block;            /* holds the permutation; NULL: malloc() has made it */
    int is_begun;               /* 0: the permutation has no values yet */
    int64_t drawn;
    fl_twister twister;
    const uint32_t *tables[4];  /* FL_FEISTEL: alternately num_columns and num_rows numbers */
    uint32_t num_rows, num_columns;
    int64_t *fed;               /* FL_FED: indices; those before fed_begin have been read */
    int64_t fed_begin, fed_capacity;
    int is_finished;            /* FL_FED: no more will follow */
} fl_order;

/* Returns 0 if there is no memory. Memory is taken from the pool, if there is one: the pages of
 * new memory cost more than the drawing of its first indices. Nothing is drawn before it is
 * read. */
int fl_open_order(fl_order *order, fl_pool *pool);
void fl_close_order(fl_order *order);
/* Returns the indices start to start + count - 1: in `scratch`, which has space for them, or in the
 * order's own memory. One thread at a time may call it, and for each index of FL_FED only once. */
fl_indices fl_read_order(fl_order *order, int64_t start, int64_t count, int64_t *scratch);
int fl_feed_order(fl_order *order, fl_indices indices, int64_t count);

/* ---- epochs: stream.c, stream_consumer.c and stream_feed.c ---- */

/* A piece of work on the batches from `batch` on: which thread did it (0: the consumer), and
 * when, on the clock of Python's time.perf_counter_ns. */
typedef struct {
    int64_t thread, batch, start_ns, stop_ns;
} fl_event;

typedef struct {
    const fl_column *columns;  /* all have the same number of rows */
    int num_columns;
    fl_order *order;
    int64_t start;             /* the first index to deliver */
    int64_t batch_size;        /* 0: sizes are fed with the indices */
    int drop_last;
    int num_threads;
    size_t block_nbytes;       /* batches are made and handed over in blocks of about this size */
    int max_blocks;            /* the most blocks that are made ahead of the consumer */
    fl_pool *pool;
    fl_event *events;          /* memory for max_events, filled as pieces are made; NULL: none */
    int64_t max_events;
} fl_plan;

typedef struct fl_stream fl_stream;

typedef enum {
    FL_END, FL_READY, FL_WAITING, FL_STARVED, FL_INVALID_INDEX, FL_NO_MEMORY,
    FL_CUT_OFF
} fl_status;

typedef struct {
    fl_block *block;  /* must be held as long as the rows are used */
    char *memory;     /* the first column's rows; those of the next column follow, aligned */
    int64_t num_rows;
    int64_t invalid_index;  /* set with FL_INVALID_INDEX */
    int column;             /* set with FL_CUT_OFF: the column of the shortened file */
} fl_batch;

/* Returns NULL if there is no memory. A stream that cannot start all of its threads works with
 * fewer. */
fl_stream *fl_open_stream(const fl_plan *plan);
/* Returns the next batch if it is made already, else FL_WAITING. */
fl_status fl_try_next(fl_stream *stream, fl_batch *batch);
/* Returns the next batch. The caller makes batches too, and waits for at most wait_ms.
 * FL_WAITING and FL_STARVED (indices must be fed first) mean: call again. */
fl_status fl_next(fl_stream *stream, int wait_ms, fl_batch *batch);
int fl_feed(fl_stream *stream, fl_indices indices, int64_t count, const int64_t *sizes,
            int64_t num_sizes);
void fl_finish_feed(fl_stream *stream);
void fl_stop_stream(fl_stream *stream);
/* Joins the threads. */
void fl_close_stream(fl_stream *stream);

/* ---- rows into given memory, by several threads: gather.c ---- */

typedef struct {
    const fl_column *columns;
    char *const *outs;
    int num_columns;
    fl_indices indices;
    int64_t count;
} fl_gather;

void fl_gather_rows(const fl_gather *gather, int num_threads);

FL_ALWAYS_INLINE size_t fl_align(size_t nbytes) {
    return (nbytes + FL_ALIGNMENT - 1) / FL_ALIGNMENT * FL_ALIGNMENT;
}

#endif
