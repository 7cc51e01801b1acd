/* Nothing but the gathering of rows: compiled and called by gather.py. */
#include <stdint.h>
#include <string.h>

/* Copies rows[picks[i]] to position i % batch_size of batch, over the previous batch.
   ahead: how many rows before its turn a row's first 4 KiB are prefetched; 0: not at all. */
void gather_batches(const char *rows, char *batch, const int64_t *picks, int64_t count,
                    int64_t batch_size, int64_t row_nbytes, int64_t ahead)
{
    const int64_t fetched = row_nbytes < 4096 ? row_nbytes : 4096;
    char *place = batch, *end = batch + batch_size * row_nbytes;
    for (int64_t i = 0; i < count; i++) {
        if (ahead && i + ahead < count) {
            const char *next = rows + picks[i + ahead] * row_nbytes;
            for (int64_t k = 0; k < fetched; k += 64)
                __builtin_prefetch(next + k, 0, 1);
        }
        memcpy(place, rows + picks[i] * row_nbytes, row_nbytes);
        place += row_nbytes;
        if (place == end)
            place = batch;
    }
}
