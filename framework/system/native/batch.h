/* What functions over a batch have in common. */

#include <stdint.h>

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
#define FASTEST __attribute__((target_clones("avx2", "default")))  /* chosen when the library is loaded */
#else
#define FASTEST
#endif

/* record(job, number) for all of a batch, shared by threads */
static void each_record(void (*record)(const void *job, int64_t number), const void *job, int64_t batch, int threads)
{
    if (threads < 2) {
        for (int64_t i = 0; i < batch; i++)
            record(job, i);
        return;
    }
    #pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < batch; i++)
        record(job, i);
}
