/* The pool: it keeps two things for later epochs, memory of batches, which is used again when
 * nobody holds it, and threads.
 *
 * A block is given back by whoever drops its last reference: any thread, also in a fork of the
 * process, in which a lock that another thread held would never be released. So nothing here takes
 * a lock: free blocks are a stack, onto which a compare-and-exchange pushes. A thread takes all of
 * them at once, by exchanging the top for NULL, and pushes back those that it does not need. To
 * take a single block it would read `next` of one that another thread may take and push again
 * meanwhile (the ABA problem); a thread that takes all reads only blocks of its own.
 */
#if !defined(_DEFAULT_SOURCE)
#define _DEFAULT_SOURCE /* madvise */
#endif
#include "core.h"

#include <stdlib.h>
#include <sys/mman.h>

enum { PAGE = 4 << 10, HUGE_PAGE = 2 << 20 };

struct fl_pool {
    atomic_int references; /* one for each block that exists, and one for the owner */
    _Atomic(fl_block *) free;
    atomic_size_t free_nbytes;
    atomic_size_t max_free_nbytes; /* 0: the owner has released the pool */
    _Atomic(fl_crew *) crew;       /* idle, or NULL */
};

/* 0 stands for an owner who is gone: a pool that keeps nothing has 1 byte instead. */
fl_pool *fl_open_pool(size_t max_free_nbytes) {
    fl_pool *pool = calloc(1, sizeof *pool);
    if (pool) {
        atomic_init(&pool->references, 1);
        atomic_init(&pool->max_free_nbytes, max_free_nbytes ? max_free_nbytes : 1);
    }
    return pool;
}

/* Drops a reference. The last one frees the pool: blocks that batches hold may outlive the
 * owner. */
static void drop_pool(fl_pool *pool) {
    if (atomic_fetch_sub(&pool->references, 1) == 1)
        free(pool);
}

/* Frees a block that nobody holds and that is on no stack. The pool may go with it. */
static void destroy_block(fl_block *block) {
    fl_pool *pool = block->pool;
    free(block->memory);
    free(block);
    drop_pool(pool);
}

/* Pushes `first` to `last`, which are linked already. If another thread changes the top between
 * the two lines, the exchange fails, loads the new top into last->next, and is tried again. */
static void push_chain(fl_pool *pool, fl_block *first, fl_block *last) {
    last->next = atomic_load(&pool->free);
    while (!atomic_compare_exchange_weak(&pool->free, &last->next, first))
        continue;
}

/* Frees the blocks that are on the stack now; other threads may push at the same time. */
static void destroy_free_blocks(fl_pool *pool) {
    for (fl_block *block = atomic_exchange(&pool->free, NULL), *next; block; block = next) {
        next = block->next;
        atomic_fetch_sub(&pool->free_nbytes, block->nbytes);
        destroy_block(block);
    }
}

/* Gives back a block without references. It is counted before it is pushed, so that free_nbytes
 * never falls below the sum of the blocks on the stack. */
static void put_back(fl_block *block) {
    fl_pool *pool = block->pool;
    size_t nbytes = block->nbytes;
    if (atomic_fetch_add(&pool->free_nbytes, nbytes) + nbytes > atomic_load(&pool->max_free_nbytes)) {
        atomic_fetch_sub(&pool->free_nbytes, nbytes);
        destroy_block(block);
        return;
    }
    /* From the push on, others may take the block and free it, and with it the pool. */
    atomic_fetch_add(&pool->references, 1);
    push_chain(pool, block, block);
    /* The owner has released the pool meanwhile, and may have emptied the stack before the push. */
    if (!atomic_load(&pool->max_free_nbytes))
        destroy_free_blocks(pool);
    drop_pool(pool);
}

/* max_free_nbytes is set before the stack is emptied: a block that comes back afterwards either
 * sees the 0 and is freed, or was pushed in time to be freed here. */
void fl_release_pool(fl_pool *pool) {
    atomic_store(&pool->max_free_nbytes, 0);
    fl_close_crew(atomic_exchange(&pool->crew, NULL));
    destroy_free_blocks(pool);
    drop_pool(pool);
}

/* Returns a block without references, of whole pages, or NULL if there is no memory. Blocks of a
 * huge page or more begin with one, which the kernel needs to map it as such. */
static fl_block *allocate_block(fl_pool *pool, size_t nbytes) {
    size_t alignment = nbytes >= HUGE_PAGE ? HUGE_PAGE : PAGE;
    fl_block *block = calloc(1, sizeof *block);
    nbytes = (nbytes + PAGE - 1) / PAGE * PAGE;
    if (!block || posix_memalign((void **)&block->memory, alignment, nbytes ? nbytes : PAGE)) {
        free(block);
        return NULL;
    }
#if defined(MADV_HUGEPAGE)
    /* The request costs nothing before the first touch, and a refusal does no harm. */
    if (nbytes >= HUGE_PAGE)
        (void)madvise(block->memory, nbytes, MADV_HUGEPAGE);
#endif
    block->pool = pool;
    block->nbytes = nbytes;
    atomic_fetch_add(&pool->references, 1);
    return block;
}

/* Whether a block is large enough, and not so large that a small batch would hold much unused
 * memory. */
static int fits(const fl_block *block, size_t nbytes) {
    return block->nbytes >= nbytes && block->nbytes <= 2 * nbytes + PAGE;
}

fl_block *fl_take_block(fl_pool *pool, size_t nbytes) {
    fl_block *found = NULL, *first = NULL, *last = NULL;
    for (fl_block *block = atomic_exchange(&pool->free, NULL), *next; block; block = next) {
        next = block->next;
        int is_taken = !found && fits(block, nbytes);
        /* A block that is too small is freed: it is of smaller batches than are made now, and
         * would use up max_free_nbytes. */
        if (is_taken || block->nbytes < nbytes)
            atomic_fetch_sub(&pool->free_nbytes, block->nbytes);
        if (is_taken) {
            found = block;
        } else if (block->nbytes < nbytes) {
            destroy_block(block);
        /* The others keep their order: the cache may still have the one that was given back
         * last. */
        } else {
            first = first ? first : block;
            if (last)
                last->next = block;
            last = block;
        }
    }
    if (first)
        push_chain(pool, first, last);
    if (!found)
        found = allocate_block(pool, nbytes);
    if (found)
        /* Nobody else can see the block now, so that no exchange is needed. */
        atomic_store(&found->references, 1);
    return found;
}

void fl_hold_block(fl_block *block) { atomic_fetch_add(&block->references, 1); }

/* The thread that drops the last reference owns the block: no other can reach it. */
void fl_release_block(fl_block *block) {
    if (atomic_fetch_sub(&block->references, 1) == 1)
        put_back(block);
}

size_t fl_free_nbytes(fl_pool *pool) { return atomic_load(&pool->free_nbytes); }

/* The exchange makes the crew this stream's own. One with another number of threads is closed. */
fl_crew *fl_take_crew(fl_pool *pool, int num_threads) {
    fl_crew *crew = atomic_exchange(&pool->crew, NULL);
    if (crew && fl_is_crew_of(crew, num_threads))
        return crew;
    fl_close_crew(crew);
    return fl_open_crew(num_threads);
}

void fl_leave_crew(fl_pool *pool, fl_crew *crew) {
    /* Of two streams that end at the same time, one leaves its crew. */
    fl_close_crew(atomic_exchange(&pool->crew, crew));
}
