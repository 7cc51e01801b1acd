/* What epochs leave to later ones: memory of batches, taken again once nobody holds it, and threads.
 *
 * A block is given back by whoever drops its last reference: any thread, also in a fork of the
 * process. So nothing here takes a lock: free blocks are a stack, onto which one atomic exchange
 * pushes, and from which one takes all at once, which a block that comes back meanwhile can't upset.
 */
#if !defined(_DEFAULT_SOURCE)
#define _DEFAULT_SOURCE /* madvise */
#endif
#include "core.h"

#include <stdlib.h>
#include <sys/mman.h>

enum { PAGE = 4 << 10, HUGE_PAGE = 2 << 20 };

struct fl_pool {
    atomic_int references; /* blocks that exist, and the owner */
    _Atomic(fl_block *) free;
    atomic_size_t free_nbytes;
    atomic_size_t max_free_nbytes; /* 0: the owner has gone */
    _Atomic(fl_crew *) crew;       /* idle, or NULL */
};

fl_pool *fl_open_pool(size_t max_free_nbytes) {
    fl_pool *pool = calloc(1, sizeof *pool);
    if (pool) {
        atomic_init(&pool->references, 1);
        atomic_init(&pool->max_free_nbytes, max_free_nbytes ? max_free_nbytes : 1);
    }
    return pool;
}

static void drop_pool(fl_pool *pool) {
    if (atomic_fetch_sub(&pool->references, 1) == 1)
        free(pool);
}

static void destroy_block(fl_block *block) {
    fl_pool *pool = block->pool;
    free(block->memory);
    free(block);
    drop_pool(pool);
}

static void push_chain(fl_pool *pool, fl_block *first, fl_block *last) {
    last->next = atomic_load(&pool->free);
    while (!atomic_compare_exchange_weak(&pool->free, &last->next, first))
        continue;
}

static void destroy_free_blocks(fl_pool *pool) {
    for (fl_block *block = atomic_exchange(&pool->free, NULL), *next; block; block = next) {
        next = block->next;
        atomic_fetch_sub(&pool->free_nbytes, block->nbytes);
        destroy_block(block);
    }
}

static void put_back(fl_block *block) {
    fl_pool *pool = block->pool;
    size_t nbytes = block->nbytes;
    if (atomic_fetch_add(&pool->free_nbytes, nbytes) + nbytes > atomic_load(&pool->max_free_nbytes)) {
        atomic_fetch_sub(&pool->free_nbytes, nbytes);
        destroy_block(block);
        return;
    }
    atomic_fetch_add(&pool->references, 1); /* others may take and destroy the block, once it is free */
    push_chain(pool, block, block);
    if (!atomic_load(&pool->max_free_nbytes)) /* the owner has gone meanwhile */
        destroy_free_blocks(pool);
    drop_pool(pool);
}

void fl_release_pool(fl_pool *pool) {
    atomic_store(&pool->max_free_nbytes, 0);
    fl_close_crew(atomic_exchange(&pool->crew, NULL));
    destroy_free_blocks(pool);
    drop_pool(pool);
}

static fl_block *allocate_block(fl_pool *pool, size_t nbytes) {
    size_t alignment = nbytes >= HUGE_PAGE ? HUGE_PAGE : PAGE;
    fl_block *block = calloc(1, sizeof *block);
    nbytes = (nbytes + PAGE - 1) / PAGE * PAGE;
    if (!block || posix_memalign((void **)&block->memory, alignment, nbytes ? nbytes : PAGE)) {
        free(block);
        return NULL;
    }
#if defined(MADV_HUGEPAGE)
    if (nbytes >= HUGE_PAGE) /* before the first touch it costs nothing; a refusal does no harm */
        (void)madvise(block->memory, nbytes, MADV_HUGEPAGE);
#endif
    block->pool = pool;
    block->nbytes = nbytes;
    atomic_fetch_add(&pool->references, 1);
    return block;
}

/* One far larger would be held by a small batch. */
static int fits(const fl_block *block, size_t nbytes) {
    return block->nbytes >= nbytes && block->nbytes <= 2 * nbytes + PAGE;
}

fl_block *fl_take_block(fl_pool *pool, size_t nbytes) {
    fl_block *found = NULL, *first = NULL, *last = NULL;
    for (fl_block *block = atomic_exchange(&pool->free, NULL), *next; block; block = next) {
        next = block->next;
        int is_taken = !found && fits(block, nbytes);
        if (is_taken || block->nbytes < nbytes)
            atomic_fetch_sub(&pool->free_nbytes, block->nbytes);
        if (is_taken) {
            found = block;
        } else if (block->nbytes < nbytes) {
            destroy_block(block);
        } else { /* in their order: the cache may still have the first */
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
        atomic_store(&found->references, 1);
    return found;
}

void fl_hold_block(fl_block *block) { atomic_fetch_add(&block->references, 1); }

void fl_release_block(fl_block *block) {
    if (atomic_fetch_sub(&block->references, 1) == 1)
        put_back(block);
}

size_t fl_free_nbytes(fl_pool *pool) { return atomic_load(&pool->free_nbytes); }

fl_crew *fl_take_crew(fl_pool *pool, int num_threads) {
    fl_crew *crew = atomic_exchange(&pool->crew, NULL);
    if (crew && fl_is_crew_of(crew, num_threads))
        return crew;
    fl_close_crew(crew);
    return fl_open_crew(num_threads);
}

void fl_leave_crew(fl_pool *pool, fl_crew *crew) {
    fl_close_crew(atomic_exchange(&pool->crew, crew)); /* that of another stream at the same time */
}
