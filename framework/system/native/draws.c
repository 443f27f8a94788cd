/* Random numbers of records: framework/order/draws.py, whose operators give the same bits. */

#include <stdint.h>

/* Write num_draws numbers in [0, 1) for each of n records to out. */
int paceline_draws(const int64_t *records, int64_t n, int64_t num_draws, int64_t key, float *out)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < num_draws; j++) {
            uint64_t x = ((uint64_t)records[i] * (uint64_t)num_draws + (uint64_t)j) * 0x9E3779B97F4A7C15u;
            x += (uint64_t)key; /* then the finalizer of splitmix64 */
            x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
            x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
            out[i * num_draws + j] = (float)((x ^ (x >> 31)) >> 40) * 0x1p-24f;
        }
    return 0;
}
