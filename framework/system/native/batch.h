/* Shared by the functions over a batch. */

#include <stdint.h>

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
/* The loader of the library chooses the version for this processor. */
#define FASTEST __attribute__((target_clones("avx2", "default")))
#else
#define FASTEST
#endif

/* Call record(job, number) for each record of a batch, shared by threads. */
__attribute__((unused)) static void each_record(void (*record)(const void *job, int64_t number), const void *job,
                        int64_t batch, int threads)
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
