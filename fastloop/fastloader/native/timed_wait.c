/* Timed waits by the monotonic clock.
 *
 * By default a condition uses the realtime clock, which NTP or the machine's owner may set while a
 * thread waits: a wait of a second would then last for hours, or end at once.
 */
#if !defined(_POSIX_C_SOURCE)
#define _POSIX_C_SOURCE 200809L
#endif
#if defined(__APPLE__)
#define _DARWIN_C_SOURCE /* pthread_cond_timedwait_relative_np */
#endif
#include "timed_wait.h"

#include <time.h>

int fl_init_timed(pthread_cond_t *condition) {
#if defined(__APPLE__) /* has no pthread_condattr_setclock(), but waits for a duration */
    return pthread_cond_init(condition, NULL);
#else
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    int error = pthread_cond_init(condition, &attributes);
    pthread_condattr_destroy(&attributes);
    return error;
#endif
}

int fl_wait_ms(pthread_cond_t *condition, pthread_mutex_t *mutex, int wait_ms) {
    struct timespec time = {wait_ms / 1000, wait_ms % 1000 * 1000000L};
#if defined(__APPLE__)
    return pthread_cond_timedwait_relative_np(condition, mutex, &time);
#else
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    time.tv_sec += now.tv_sec;
    time.tv_nsec += now.tv_nsec;
    /* POSIX refuses a time of more than 999,999,999 ns. */
    if (time.tv_nsec >= 1000000000L) {
        time.tv_sec++;
        time.tv_nsec -= 1000000000L;
    }
    return pthread_cond_timedwait(condition, mutex, &time);
#endif
}
