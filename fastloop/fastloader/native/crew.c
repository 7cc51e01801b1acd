/* Threads that work on one epoch after another.
 *
 * Starting and joining threads takes longer than making a batch. So the threads of an epoch that was
 * delivered to its end wait for the next one; where none begins for a second, they end.
 */
#if !defined(_POSIX_C_SOURCE)
#define _POSIX_C_SOURCE 200809L
#endif
#include "core.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { MAX_IDLE_S = 1 };

typedef struct member {
    fl_crew *crew;
    pthread_t thread;
    int is_started;     /* and has to be joined */
    int is_gone;        /* it has waited for too long */
    int64_t last_task;  /* by number */
} member;

struct fl_crew {
    pid_t pid; /* a fork has none of the threads */
    int num_threads;
    pthread_mutex_t mutex;
    pthread_cond_t begin, end;
    void (*work)(void *);
    void *argument;
    int64_t task;
    int num_busy, is_closed;
    member members[];
};

static int wait_for_task(fl_crew *crew, const member *self) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += MAX_IDLE_S;
    int error = 0;
    while (self->last_task == crew->task && !crew->is_closed && !error)
        error = pthread_cond_timedwait(&crew->begin, &crew->mutex, &until);
    return self->last_task != crew->task;
}

static void *run_member(void *argument) {
    member *self = argument;
    fl_crew *crew = self->crew;
    pthread_mutex_lock(&crew->mutex);
    while (wait_for_task(crew, self)) {
        self->last_task = crew->task;
        pthread_mutex_unlock(&crew->mutex);
        crew->work(crew->argument);
        pthread_mutex_lock(&crew->mutex);
        if (!--crew->num_busy)
            pthread_cond_signal(&crew->end);
    }
    self->is_gone = 1;
    pthread_mutex_unlock(&crew->mutex);
    return NULL;
}

static void join_member(member *member) {
    if (member->is_started)
        pthread_join(member->thread, NULL);
    member->is_started = member->is_gone = 0;
}

static void start_member(fl_crew *crew, member *member) {
    *member = (struct member){.crew = crew, .last_task = crew->task - 1};
    member->is_started = !pthread_create(&member->thread, NULL, run_member, member);
}

fl_crew *fl_open_crew(int num_threads) {
    size_t nbytes = sizeof(fl_crew) + (size_t)num_threads * sizeof(member);
    fl_crew *crew = calloc(1, nbytes);
    if (!crew)
        return NULL;
    crew->pid = getpid();
    crew->num_threads = num_threads;
    pthread_mutex_init(&crew->mutex, NULL);
    pthread_cond_init(&crew->begin, NULL);
    pthread_cond_init(&crew->end, NULL);
    return crew;
}

int fl_is_crew_of(const fl_crew *crew, int num_threads) {
    return crew->num_threads == num_threads && crew->pid == getpid();
}

void fl_start_crew(fl_crew *crew, void (*work)(void *), void *argument) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for the program's own threads */
    pthread_mutex_lock(&crew->mutex);
    crew->work = work, crew->argument = argument;
    crew->task++;
    pthread_cond_broadcast(&crew->begin);
    for (int k = 0; k < crew->num_threads; k++) {
        member *member = &crew->members[k];
        if (member->is_gone)
            join_member(member);
        if (!member->is_started)
            start_member(crew, member);
        crew->num_busy += member->is_started; /* with fewer, even with none, the consumer works */
    }
    pthread_mutex_unlock(&crew->mutex);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void fl_await_crew(fl_crew *crew) {
    pthread_mutex_lock(&crew->mutex);
    while (crew->num_busy)
        pthread_cond_wait(&crew->end, &crew->mutex);
    pthread_mutex_unlock(&crew->mutex);
}

void fl_close_crew(fl_crew *crew) {
    if (!crew || crew->pid != getpid())
        return;
    pthread_mutex_lock(&crew->mutex);
    crew->is_closed = 1;
    pthread_cond_broadcast(&crew->begin);
    pthread_mutex_unlock(&crew->mutex);
    for (int k = 0; k < crew->num_threads; k++)
        join_member(&crew->members[k]);
    pthread_cond_destroy(&crew->end);
    pthread_cond_destroy(&crew->begin);
    pthread_mutex_destroy(&crew->mutex);
    free(crew);
}
