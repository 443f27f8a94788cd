/* A random order of any length, computed place by place: a keyed bijection of 0..size-1.

   A place is split into a row below num_rows and a column below num_columns. Every round adds a
   hash of one to the other, as in a Feistel network, but modulo a number that need not be a power
   of two. So hardly any result is beyond size; such a result goes through the rounds again (cycle
   walking), which keeps the mapping one to one. num_rows is even, because the rounds could make
   only even permutations otherwise. framework/order/draws.py has the same in torch.

   Sources: Black, Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002 (the generalized
   Feistel network and cycle walking); Lemire, "Fast random integer generation in an interval", 2019
   (the product that reduces a hash). */

#include <stdint.h>

#define NUM_ROUNDS 8
#define BLOCK 512  /* places at once: they stay in the first-level cache */

/* Eight places at once on processors that have the instructions. That is three times as fast. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__linux__)
#define FOR_EVERY_PROCESSOR __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FOR_EVERY_PROCESSOR
#endif

/* A hash of x, from 0 to limit - 1. */
static inline uint32_t hashed(uint32_t x, uint32_t key, uint32_t limit)
{
    uint32_t h = (x ^ key) * 0x9E3779B1u;
    h = (h ^ (h >> 15)) * 0x85EBCA77u;
    h ^= h >> 13;
    return (uint32_t)(((uint64_t)h * limit) >> 32);
}

static inline uint32_t added(uint32_t x, uint32_t y, uint32_t limit)
{
    uint32_t sum = x + y;
    return sum >= limit ? sum - limit : sum;
}

FOR_EVERY_PROCESSOR
static void mix(uint32_t *restrict rows, uint32_t *restrict columns, int64_t count,
                uint32_t num_rows, uint32_t num_columns, const uint32_t *keys)
{
    for (int64_t i = 0; i < count; i++) {
        uint32_t row = rows[i], column = columns[i];
        for (int round = 0; round < NUM_ROUNDS; round += 2) {
            row = added(row, hashed(column, keys[round], num_rows), num_rows);
            column = added(column, hashed(row, keys[round + 1], num_columns), num_columns);
        }
        rows[i] = row;
        columns[i] = column;
    }
}

/* Write the numbers at places start..start+count-1 of the order of 0..size-1 to out. num_rows is
   at most 2**31, size at most num_rows * num_columns, and keys has NUM_ROUNDS numbers. */
int paceline_bijection(int64_t size, int64_t num_rows, int64_t num_columns, const uint32_t *keys,
                       int64_t start, int64_t count, int64_t *out)
{
    uint32_t row = (uint32_t)(start / num_columns), column = (uint32_t)(start % num_columns);
    uint32_t rows[BLOCK], columns[BLOCK];
    for (int64_t at = 0; at < count; at += BLOCK) {
        int64_t many = count - at < BLOCK ? count - at : BLOCK;
        for (int64_t i = 0; i < many; i++) {
            rows[i] = row;
            columns[i] = column;
            if (++column == num_columns) {
                column = 0;
                row++;
            }
        }
        mix(rows, columns, many, (uint32_t)num_rows, (uint32_t)num_columns, keys);
        for (int64_t i = 0; i < many; i++) {
            while (rows[i] * num_columns + columns[i] >= size)
                mix(rows + i, columns + i, 1, (uint32_t)num_rows, (uint32_t)num_columns, keys);
            out[at + i] = rows[i] * num_columns + columns[i];
        }
    }
    return 0;
}
