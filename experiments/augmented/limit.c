/* Nothing but samples of JPEG files, made by threads of C over and over the same memory: compiled and
 * called by limit.py. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "jpeg.h"

enum { NUM_SAMPLES = 30, MAX_THREADS = 256 }; /* of a thread, as many as one writes of a batch of 60 */

typedef struct {
    const char *const *paths;
    int64_t count;
    fj_crop crop;
    fj_format format;
    atomic_llong next, made;
} job;

static void *work(void *argument) {
    job *job = argument;
    size_t nbytes = fj_sample_nbytes(&job->crop, &job->format);
    fj_decoder *decoder = fj_open_decoder();
    char *samples = malloc(NUM_SAMPLES * nbytes);
    fj_file file = {0};
    int64_t k, made = 0;
    while (decoder && samples && (k = atomic_fetch_add(&job->next, 1)) < job->count)
        made += fj_read_file(&file, job->paths[k]) &&
                fj_make_sample(decoder, file.data, file.nbytes, &job->crop, &job->format,
                               (uint64_t)k * 0x9E3779B97F4A7C15u,
                               samples + (size_t)(made % NUM_SAMPLES) * nbytes);
    atomic_fetch_add(&job->made, made);
    free(file.data);
    free(samples);
    fj_close_decoder(decoder);
    return NULL;
}

/* Make a normalized float32 CHW sample of RandomResizedCrop(side) of each file. ranges: of the area and
 * of the ratio; statistics: three factors and three offsets. Returns how many were made. */
int64_t make_samples(const char *const *paths, int64_t count, int num_threads, int side,
                     const double *ranges, const float *statistics) {
    job job = {paths, count, .format = {FJ_F32, 0, {0}, {0}}};
    job.crop = (fj_crop){FJ_RANDOM_RESIZED_CROP, side, side, ranges[0], ranges[1],
                         ranges[2], ranges[3], 0, 0.5};
    for (int k = 0; k < 3; k++) {
        job.format.factor[k] = statistics[k];
        job.format.offset[k] = statistics[3 + k];
    }
    pthread_t threads[MAX_THREADS];
    int started = 0;
    while (started < num_threads && started < MAX_THREADS &&
           !pthread_create(&threads[started], NULL, work, &job))
        started++;
    while (started)
        pthread_join(threads[--started], NULL);
    return job.made;
}
