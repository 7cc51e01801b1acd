/* Pseudo-random numbers by splitmix64 (Steele, Lea and Flood, 2014), for the core and for the
 * decoder of JPEG images. core/seeds.py computes the same numbers. */
#ifndef FASTLOOP_SPLITMIX_H
#define FASTLOOP_SPLITMIX_H

#include <stdint.h>

/* Returns output `number` of a generator that begins with this state. Always inlined: it runs for
 * each row that has a random place. */
static inline __attribute__((always_inline)) uint64_t splitmix64(uint64_t state, uint64_t number) {
    /* The increment is 2^64 divided by the golden ratio, rounded to an odd number. */
    uint64_t bits = state + (number + 1) * 0x9E3779B97F4A7C15u;
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9u;
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBu;
    return bits ^ (bits >> 31);
}

#endif
