/* Ask the system for the pages of all records of a batch at once, before the first of them is read.

   Records of a mapped file that is not in memory are otherwise read one page fault after the other:
   the disk has one request at a time, and each brings pages around it that nobody wants. With all
   requests at once, cold records of 3 to 150 kB are read 2 to 9 times as fast, and 1 to 2 bytes are
   read for each that is wanted, in place of 1.5 to 34 (benchmarks/README.md).

   Asking costs up to a microsecond per record, and gains nothing once the file is in memory. So a
   thread stops asking after some batches of which no page was missing, and begins again when it had
   to wait for a disk, which the kernel counts as major faults. The kernel says what is missing only
   to those who may write the file. For others it looks as if nothing were, and they begin again
   and again, each time for longer. */

#define _GNU_SOURCE  /* RUSAGE_THREAD */
#include <stdint.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#define FEWEST 16  /* batches to ask for */
#define MOST 1024
#define CHECK 4    /* batches after which the faults are looked at, which takes a microsecond */
#define LOOKS 8    /* pieces of a batch whose first page is looked at */
#define MOST_BYTES (64 << 20)  /* of a call: pages that come too early may be dropped before use */

static __thread int left = FEWEST;  /* batches to ask for; -1: one was read without asking */

/* Return whether the calling thread should ask for the pages of the batch that it reads now. */
int paceline_should_ask(void)
{
#ifdef RUSAGE_THREAD
    static __thread int in_a_row = FEWEST;
    static __thread long faults = 0;
    static __thread unsigned calls = 0;
    struct rusage usage;

    if (left > 0) {
        left--;
        return 1;
    }
    if (left < 0 && ++calls % CHECK)
        return 0;
    if (getrusage(RUSAGE_THREAD, &usage))
        return 0;
    if (left == 0) {
        left = -1;
        faults = usage.ru_majflt;
        return 0;
    }
    if (usage.ru_majflt == faults) {
        in_a_row = FEWEST;
        return 0;
    }
    left = in_a_row - 1;
    in_a_row = in_a_row * 2 > MOST ? MOST : in_a_row * 2;
    return 1;
#else
    return 0;
#endif
}

static int is_missing(uintptr_t page)
{
    unsigned char state = 1;
    return mincore((void *)page, 1, &state) == 0 && !(state & 1);
}

/* Ask for pieces of a mapped file. Piece i begins at base + starts[i] * stride. It has sizes[i]
   bytes, or size bytes if sizes is NULL. A piece that is not within the length bytes at base is
   left out, since whoever reads it complains. Return the bytes that were asked for. */
int64_t paceline_ask_pages(const char *base, int64_t length, const int64_t *starts, int64_t stride,
                           const int64_t *sizes, int64_t size, int64_t count)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    int64_t asked = 0;
    int64_t look = count / LOOKS + 1;
    if (stride < 1)
        return 0;
    for (int64_t i = 0; i < count && asked < MOST_BYTES; i++) {
        int64_t bytes = sizes ? sizes[i] : size;
        if (starts[i] < 0 || bytes < 1 || bytes > length || starts[i] > (length - bytes) / stride)
            continue;
        uintptr_t first = (uintptr_t)base + (uintptr_t)(starts[i] * stride);
        uintptr_t begin = first & ~(page - 1);
        if (i % look == 0 && left < FEWEST && is_missing(begin))
            left = FEWEST;
        madvise((void *)begin, (size_t)(first - begin) + (size_t)bytes, MADV_WILLNEED);
        asked += bytes;
    }
    return asked;
}
