/* Makes (copies or converts) the rows at given indices, and prefetches rows ahead of their use.
 *
 * A row at a random place costs a miss of every cache and of the TLB. The processor has many more
 * misses underway at once if the rows to come are prefetched. The hint matters: prefetcht1 loads
 * into the second-level cache, and its misses wait in a larger queue than the first level's.
 */
#include "core.h"
#include "splitmix.h"

#include <pthread.h>
#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

/* Rows are prefetched AHEAD_BYTES ahead, but at least MIN_AHEAD and at most MAX_AHEAD of them,
 * and of a row at most its first MAX_HINT_BYTES. */
enum { LINE = 64, AHEAD_BYTES = 9 << 10, MIN_AHEAD = 3, MAX_AHEAD = 64, MAX_HINT_BYTES = 16 << 10 };
/* Indices are checked CHECKED_AT_ONCE at a time: without a branch inside, so that the compiler
 * can vectorize the loop, and early enough to stop soon after an invalid one. */
enum { SMALL_ROW = 256, CHECKED_AT_ONCE = 1024 };

FL_ALWAYS_INLINE const char *row_of(const fl_column *column, int64_t index) {
    if (column->positions)
        /* windows.py defines random positions in the same way, by core/seeds.py. */
        index = (int64_t)(splitmix64(column->seed * 0xD1342543DE82EF95u, (uint64_t)index) %
                          column->positions);
    return column->base + index * column->stride;
}

/* Prefetches a row's lines. No address is wrong for a prefetch: it never faults. */
FL_ALWAYS_INLINE void ask_for(const char *row, int64_t nbytes) {
    int64_t hinted = nbytes < MAX_HINT_BYTES ? nbytes : MAX_HINT_BYTES;
    for (int64_t offset = 0; offset < hinted; offset += LINE)
        __builtin_prefetch(row + offset, 0, 2); /* locality 2 is compiled to prefetcht1 */
    if (nbytes > 16)
        __builtin_prefetch(row + hinted - 1, 0, 2); /* an unaligned row ends one line later */
}

/* Copies 16 to SMALL_ROW bytes without a call of memcpy(). The last 16 bytes overlap those
 * before them unless nbytes is a multiple of 16. */
FL_ALWAYS_INLINE void copy_small(char *out, const char *row, size_t nbytes) {
    for (size_t offset = 0; offset + 16 <= nbytes; offset += 16)
        memcpy(out + offset, row + offset, 16);
    memcpy(out + nbytes - 16, row + nbytes - 16, 16);
}

/* Copies by stores that bypass the cache: a line is not read from memory before it is
 * overwritten. The stores are not ordered with others until fl_finish_stores(). */
void fl_copy_bypassing(char *out, const char *row, size_t nbytes) {
#if defined(__SSE2__)
    /* _mm_stream_si128 needs an address that is a multiple of 16. */
    size_t head = (size_t)(-(intptr_t)out & 15);
    if (head < nbytes) {
        memcpy(out, row, head);
        out += head, row += head, nbytes -= head;
        for (; nbytes >= 64; out += 64, row += 64, nbytes -= 64) {
            __builtin_prefetch(row + 2048, 0, 2);
            __m128i a = _mm_loadu_si128((const __m128i *)row);
            __m128i b = _mm_loadu_si128((const __m128i *)(row + 16));
            __m128i c = _mm_loadu_si128((const __m128i *)(row + 32));
            __m128i d = _mm_loadu_si128((const __m128i *)(row + 48));
            _mm_stream_si128((__m128i *)out, a);
            _mm_stream_si128((__m128i *)(out + 16), b);
            _mm_stream_si128((__m128i *)(out + 32), c);
            _mm_stream_si128((__m128i *)(out + 48), d);
        }
    }
#endif
    memcpy(out, row, nbytes);
}

/* Orders the bypassing stores before the stores that follow: without it another core could see a
 * batch as complete before its rows have arrived. */
void fl_finish_stores(void) {
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

typedef enum { COPY_2, COPY_4, COPY_8, COPY_16, COPY_SMALL, COPY, COPY_BYPASSING, CONVERT,
               CONVERT_BYPASSING } method;

FL_ALWAYS_INLINE void make_row(const fl_column *column, const method how, const char *row,
                               char *out) {
    switch (how) {
        case COPY_2: memcpy(out, row, 2); break;
        case COPY_4: memcpy(out, row, 4); break;
        case COPY_8: memcpy(out, row, 8); break;
        case COPY_16: memcpy(out, row, 16); break;
        case COPY_SMALL: copy_small(out, row, (size_t)column->nbytes); break;
        case COPY: memcpy(out, row, (size_t)column->nbytes); break;
        case COPY_BYPASSING: fl_copy_bypassing(out, row, (size_t)column->nbytes); break;
        case CONVERT: fl_convert_row(column, row, out, 0); break;
        case CONVERT_BYPASSING: fl_convert_row(column, row, out, 1); break;
    }
}

/* Inlined for each method and width, so that both are constants in the loop. */
FL_ALWAYS_INLINE void make_rows(const fl_column *column, const method how, fl_indices indices,
                                fl_span span, char *out) {
    const int64_t nbytes = column->source_nbytes, step = column->nbytes;
    int64_t ahead = nbytes ? AHEAD_BYTES / nbytes : 0;
    ahead = ahead < MIN_AHEAD ? MIN_AHEAD : ahead > MAX_AHEAD ? MAX_AHEAD : ahead;
    const int64_t last = span.count + span.ahead;
    /* The loop below prefetches row k + ahead when it makes row k. At the beginning of a piece,
     * nobody has prefetched the first `ahead` rows. */
    for (int64_t k = 0; span.begins && k < ahead && k < last; k++)
        ask_for(row_of(column, fl_index(indices, k)), nbytes);
    for (int64_t k = 0; k < span.count; k++, out += step) {
        if (k + ahead < last)
            ask_for(row_of(column, fl_index(indices, k + ahead)), nbytes);
        make_row(column, how, row_of(column, fl_index(indices, k)), out);
    }
}

FL_ALWAYS_INLINE method choose_method(const fl_column *column, int bypasses) {
    if (column->source != FL_BYTES)
        return bypasses ? CONVERT_BYPASSING : CONVERT;
    /* memcpy() of a constant size is one or two instructions. */
    switch (column->nbytes) {
        case 2: return COPY_2;
        case 4: return COPY_4;
        case 8: return COPY_8;
        case 16: return COPY_16;
    }
    if (column->nbytes > 16 && column->nbytes <= SMALL_ROW)
        return COPY_SMALL;
    return bypasses ? COPY_BYPASSING : COPY;
}

#define CASE(how)                                                                         \
    case how:                                                                             \
        if (indices.width == 4)                                                           \
            make_rows(column, how, (fl_indices){indices.data, 4}, span, out);             \
        else                                                                              \
            make_rows(column, how, (fl_indices){indices.data, 8}, span, out);             \
        break;

void fl_make_rows(const fl_column *column, fl_indices indices, fl_span span, char *out) {
    if (!column->nbytes)
        return;
    switch (choose_method(column, span.bypasses)) {
        CASE(COPY_2)
        CASE(COPY_4)
        CASE(COPY_8)
        CASE(COPY_16)
        CASE(COPY_SMALL)
        CASE(COPY)
        CASE(COPY_BYPASSING)
        CASE(CONVERT)
        CASE(CONVERT_BYPASSING)
    }
}

int64_t fl_find_invalid(fl_indices indices, int64_t count, int64_t num_rows) {
    for (int64_t start = 0; start < count; start += CHECKED_AT_ONCE) {
        int64_t stop = start + CHECKED_AT_ONCE < count ? start + CHECKED_AT_ONCE : count;
        /* Negative indices are huge as unsigned ones: one comparison tests both ends. */
        int is_invalid = 0;
        if (indices.width == 4) {
            uint64_t limit = (uint64_t)num_rows;
            uint32_t most = num_rows > UINT32_MAX ? UINT32_MAX : (uint32_t)limit;
            for (int64_t k = start; k < stop; k++)
                is_invalid |= ((const int32_t *)indices.data)[k] < 0 ||
                              ((const uint32_t *)indices.data)[k] >= most;
        } else {
            for (int64_t k = start; k < stop; k++)
                is_invalid |= ((const uint64_t *)indices.data)[k] >= (uint64_t)num_rows;
        }
        /* The indices are looked at one by one only if one of them is invalid. */
        for (int64_t k = start; is_invalid && k < stop; k++) {
            int64_t index = fl_index(indices, k);
            if (index < 0 || index >= num_rows)
                return k;
        }
    }
    return -1;
}

/* ---- by several threads ---- */

/* A thread that has less than MIN_BYTES_PER_THREAD to do costs more than it saves. */
enum { MAX_THREADS = 64, MIN_BYTES_PER_THREAD = 512 << 10 };

typedef struct {
    const fl_gather *gather;
    int64_t piece;
    atomic_llong next;
} gather_work;

/* Runs in each thread, and in the caller: claims the next piece of rows by one atomic addition,
 * so that a thread that is late gets fewer pieces. Nothing else is shared; pieces do not
 * overlap. */
static void *work_on_gather(void *argument) {
    gather_work *work = argument;
    const fl_gather *gather = work->gather;
    for (;;) {
        int64_t start = atomic_fetch_add(&work->next, work->piece);
        if (start >= gather->count)
            return NULL;
        int64_t count = gather->count - start < work->piece ? gather->count - start : work->piece;
        for (int c = 0; c < gather->num_columns; c++) {
            const fl_column *column = &gather->columns[c];
            fl_make_rows(column, fl_skip(gather->indices, start), (fl_span){count, 0, 1, 0},
                         gather->outs[c] + start * column->nbytes);
        }
    }
}

/* The indices must have been checked. Returns when all rows are written. */
void fl_gather_rows(const fl_gather *gather, int num_threads) {
    int64_t row = 1;
    for (int c = 0; c < gather->num_columns; c++)
        row += gather->columns[c].nbytes;
    gather_work work = {.gather = gather, .piece = FL_PIECE_BYTES / row + 1};
    atomic_init(&work.next, 0);
    int64_t most = gather->count * row / MIN_BYTES_PER_THREAD;
    if (num_threads > most)
        num_threads = (int)most;
    pthread_t threads[MAX_THREADS];
    int started = 0;
    while (started < num_threads - 1 && started < MAX_THREADS &&
           !pthread_create(&threads[started], NULL, work_on_gather, &work))
        started++;
    work_on_gather(&work); /* the caller does the rest, even if no thread could be started */
    while (started)
        pthread_join(threads[--started], NULL);
}
