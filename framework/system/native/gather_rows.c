/* Gather pieces of any size from anywhere in memory: the rows of ragged arrays.

   As in gather.c, the lines of later pieces are prefetched while one is copied. */

#include <stdint.h>
#include <string.h>

#define LINE 64
#define AHEAD 4        /* pieces */
#define MOST 4096      /* bytes to prefetch of each; the processor itself prefetches the rest */

/* Copy count pieces. Piece i has sizes[i] bytes; it goes from base + starts[i] to out + targets[i].
   If a piece is not within the length bytes at base, or its copy not within the room bytes at out,
   return -1 and copy nothing. */
int paceline_gather_rows(const char *base, int64_t length, const int64_t *starts,
                         const int64_t *sizes, const int64_t *targets, int64_t count, char *out,
                         int64_t room)
{
    for (int64_t i = 0; i < count; i++)
        if (sizes[i] < 0 || starts[i] < 0 || starts[i] > length - sizes[i] ||
            targets[i] < 0 || targets[i] > room - sizes[i])
            return -1;
    for (int64_t i = 0; i < count; i++) {
        if (i + AHEAD < count) {
            const char *next = base + starts[i + AHEAD];
            int64_t asked = sizes[i + AHEAD] < MOST ? sizes[i + AHEAD] : MOST;
            for (int64_t at = 0; at < asked; at += LINE)
                __builtin_prefetch(next + at, 0, 2);
        }
        memcpy(out + targets[i], base + starts[i], (size_t)sizes[i]);
    }
    return 0;
}
