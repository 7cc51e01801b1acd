/* Waits on a condition for at most some milliseconds, by a clock that nobody sets. */
#ifndef FASTLOOP_TIMED_WAIT_H
#define FASTLOOP_TIMED_WAIT_H

#include <pthread.h>

/* Makes a condition for fl_wait_ms(). Returns 0, or an error number. */
int fl_init_timed(pthread_cond_t *condition);

/* Waits with the mutex held. Returns 0 after a signal or for no reason, as POSIX allows, and
 * ETIMEDOUT after `wait_ms`. */
int fl_wait_ms(pthread_cond_t *condition, pthread_mutex_t *mutex, int wait_ms);

#endif
