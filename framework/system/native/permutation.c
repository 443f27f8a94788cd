/* Random orders: sort the numbers 0..count-1 by random keys, which framework/order/draws.py
   defines.

   The keys are spread evenly. A bucket for every record or two, by the first bits of the key,
   leaves almost nothing to sort.

   Source of the mixing: Steele, Lea, Flood, "Fast splittable pseudorandom number generators",
   OOPSLA 2014. */

#include <stdint.h>
#include <stdlib.h>

#define GOLDEN 0x9E3779B97F4A7C15u
#define MOST_BITS 22  /* so many buckets still fit into a cache */

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

/* Sort by key. Insertion is fastest for the few entries of a bucket. */
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

/* Write the numbers 0..count-1 to out, ordered by the signed value of
   mixed(number * GOLDEN + seed). Return -1 if memory is used up. */
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
            /* The flipped bit makes the unsigned order equal the signed one. */
            keys[i] = mixed((uint64_t)i * GOLDEN + (uint64_t)seed) ^ (UINT64_C(1) << 63);
            ends[keys[i] >> (64 - bits)]++;
        }
        for (int64_t bucket = 0, total = 0; bucket < num_buckets; bucket++) {
            int64_t size = ends[bucket];
            ends[bucket] = total;  /* the start, which becomes the end as the bucket fills */
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
