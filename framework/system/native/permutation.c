/* Random orders: the numbers 0..count-1 by their random keys, as framework/order.py defines it.

   Keys spread evenly, so that a bucket for every record or two, by a key's first bits, leaves next to nothing to be sorted.
   Source of the mixing: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014. */

#include <stdint.h>
#include <stdlib.h>

#define GOLDEN 0x9E3779B97F4A7C15u
#define MOST_BITS 22  /* buckets that still fit a cache */

typedef struct {
    uint64_t key;
    int64_t number;
} Entry;

static uint64_t mixed(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

/* By key; a bucket holds few. */
static void sort(Entry *entries, int64_t count)
{
    for (int64_t i = 1; i < count; i++) {
        Entry entry = entries[i];
        int64_t at = i;
        for (; at > 0 && entries[at - 1].key > entry.key; at--)
            entries[at] = entries[at - 1];
        entries[at] = entry;
    }
}

/* Writes the numbers 0..count-1 to out, by the signed value of mixed(number * GOLDEN + seed). Returns -1 where there is no memory. */
int paceline_permutation(int64_t count, int64_t seed, int64_t *out)
{
    int bits = 1;
    while (bits < MOST_BITS && (INT64_C(1) << bits) < count)
        bits++;
    int64_t num_buckets = INT64_C(1) << bits;
    Entry *entries = malloc((size_t)(count + 1) * sizeof(Entry));
    int64_t *ends = calloc((size_t)num_buckets, sizeof(int64_t));
    uint64_t *keys = malloc((size_t)(count + 1) * sizeof(uint64_t));
    int failed = !entries || !ends || !keys;
    if (!failed) {
        for (int64_t i = 0; i < count; i++) {
            keys[i] = mixed((uint64_t)i * GOLDEN + (uint64_t)seed) ^ (UINT64_C(1) << 63);  /* so that unsigned order is the signed one */
            ends[keys[i] >> (64 - bits)]++;
        }
        for (int64_t bucket = 0, total = 0; bucket < num_buckets; bucket++) {
            int64_t size = ends[bucket];
            ends[bucket] = total;  /* where it starts; it ends there once it is full */
            total += size;
        }
        for (int64_t i = 0; i < count; i++)
            entries[ends[keys[i] >> (64 - bits)]++] = (Entry){keys[i], i};
        for (int64_t bucket = 0, start = 0; bucket < num_buckets; start = ends[bucket++])
            sort(entries + start, ends[bucket] - start);
        for (int64_t i = 0; i < count; i++)
            out[i] = entries[i].number;
    }
    free(entries);
    free(ends);
    free(keys);
    return failed ? -1 : 0;
}
