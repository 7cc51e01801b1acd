/* Threads that work on one epoch after another.
 *
 * Starting and joining threads takes longer than making a batch. So the threads of an epoch that
 * was delivered to its end wait for the next one; if none begins for a second, they end.
 *
 * Tasks are numbered. fl_start_crew() raises the number, and each member works once when the number
 * differs from that of its last task. num_busy counts the members that have not finished the task.
 * The mutex guards all of the crew but `pid` and num_threads, which do not change; `work` runs
 * without it. Only the stream that owns the crew starts, awaits and closes it.
 */
#if !defined(_POSIX_C_SOURCE)
#define _POSIX_C_SOURCE 200809L
#endif
#include "core.h"
#include "timed_wait.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

enum { MAX_IDLE_MS = 1000 };

/* One thread, or the place for one. */
typedef struct member {
    fl_crew *crew;
    pthread_t thread;
    int is_started;     /* and must be joined */
    int is_gone;        /* it has waited too long, and has ended or is about to */
    int64_t last_task;  /* by number */
} member;

struct fl_crew {
    pid_t pid; /* of the process that has the threads; a fork has none of them */
    int num_threads;
    pthread_mutex_t mutex;
    pthread_cond_t begin, end;
    void (*work)(void *);
    void *argument;
    int64_t task;
    int num_busy, is_closed;
    member members[];
};

/* Waits with the mutex held. Returns 1 if there is a task for this member, 0 if the crew was
 * closed or MAX_IDLE_MS have passed without one. */
static int wait_for_task(fl_crew *crew, const member *self) {
    int error = 0;
    while (self->last_task == crew->task && !crew->is_closed && !error)
        error = fl_wait_ms(&crew->begin, &crew->mutex, MAX_IDLE_MS);
    /* A task may have come together with the timeout: it counts. */
    return self->last_task != crew->task;
}

/* The function of each thread: it runs tasks until the crew is closed or it has waited too long.
 * It holds the mutex, except while it works or waits. */
static void *run_member(void *argument) {
    member *self = argument;
    fl_crew *crew = self->crew;
    pthread_mutex_lock(&crew->mutex);
    while (wait_for_task(crew, self)) {
        self->last_task = crew->task;
        pthread_mutex_unlock(&crew->mutex);
        crew->work(crew->argument);
        pthread_mutex_lock(&crew->mutex);
        /* num_busy was raised for this member by fl_start_crew(), before the mutex was released. */
        if (!--crew->num_busy)
            pthread_cond_signal(&crew->end);
    }
    /* Set with the mutex held: fl_start_crew() sees it, and replaces this thread, or the member
     * takes the task. No task can be lost between the two. */
    self->is_gone = 1;
    pthread_mutex_unlock(&crew->mutex);
    return NULL;
}

/* May be called with the mutex held: a member that is_gone has released it for good. */
static void join_member(member *member) {
    if (member->is_started)
        pthread_join(member->thread, NULL);
    member->is_started = member->is_gone = 0;
}

/* last_task is one behind, so that the new thread finds the present task to do. */
static void start_member(fl_crew *crew, member *member) {
    *member = (struct member){.crew = crew, .last_task = crew->task - 1};
    member->is_started = !pthread_create(&member->thread, NULL, run_member, member);
}

/* The members are zeros: none is started, and none is to be joined. */
fl_crew *fl_open_crew(int num_threads) {
    size_t nbytes = sizeof(fl_crew) + (size_t)num_threads * sizeof(member);
    fl_crew *crew = calloc(1, nbytes);
    if (!crew)
        return NULL;
    crew->pid = getpid();
    crew->num_threads = num_threads;
    pthread_mutex_init(&crew->mutex, NULL);
    fl_init_timed(&crew->begin);
    pthread_cond_init(&crew->end, NULL);
    return crew;
}

/* A crew of the process before a fork has no threads here, and its mutex may be locked forever. */
int fl_is_crew_of(const fl_crew *crew, int num_threads) {
    return crew->num_threads == num_threads && crew->pid == getpid();
}

/* No task is under way: fl_await_crew() has returned, or none was started. */
void fl_start_crew(fl_crew *crew, void (*work)(void *), void *argument) {
    sigset_t all, before;
    sigfillset(&all);
    /* New threads inherit the mask: signals are for the program's own threads. */
    pthread_sigmask(SIG_SETMASK, &all, &before);
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
        /* If some threads could not be started, or none at all, the consumer makes the batches. */
        crew->num_busy += member->is_started;
    }
    pthread_mutex_unlock(&crew->mutex);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* Returns when no member works on the last task any more. Afterwards `argument` may be freed. */
void fl_await_crew(fl_crew *crew) {
    pthread_mutex_lock(&crew->mutex);
    while (crew->num_busy)
        pthread_cond_wait(&crew->end, &crew->mutex);
    pthread_mutex_unlock(&crew->mutex);
}

void fl_close_crew(fl_crew *crew) {
    /* In a fork there is nothing to join, and the mutex may be locked: the memory is left to
     * leak. */
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
