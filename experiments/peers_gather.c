/* What gathering rows takes and nothing else: compiled and called by peers_limits.py. */
#include <stdint.h>
#include <string.h>

/* rows[picks[i]] goes to place i % batch_size of batch, over what a batch before it has left there.
   ahead: how many rows before its turn a row's first 4 KiB are asked for; 0: not at all. */
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
