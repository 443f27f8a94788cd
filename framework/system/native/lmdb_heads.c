/* Check the headers of LMDB values. framework/store/lmdb_store.py describes them.

   The headers of later values are prefetched, since they lie anywhere in the file. */

#include <stdint.h>
#include <string.h>

#define AHEAD 8  /* values */

/* Write where the fields of each value begin to starts, and return the place of the first value
   whose header does not fit its size or the lengths of the fields, or count if all fit.

   Value i is the sizes[indices[i]] bytes at base + offsets[indices[i]], which are all inside the
   map. Field j has lengths[j] bytes. Return -1 for an index that is not below num_values. */
int64_t paceline_lmdb_heads(const char *base, const int64_t *offsets, const int64_t *sizes,
                            int64_t num_values, const int64_t *indices, int64_t count,
                            const int64_t *lengths, int64_t num_fields, int64_t head_bytes,
                            int64_t *starts)
{
    int64_t total = head_bytes;
    for (int64_t j = 0; j < num_fields; j++)
        total += lengths[j];
    for (int64_t i = 0; i < count; i++)
        if (indices[i] < 0 || indices[i] >= num_values)
            return -1;
    for (int64_t i = 0; i < count; i++) {
        if (i + AHEAD < count)
            __builtin_prefetch(base + offsets[indices[i + AHEAD]], 0, 2);
        int64_t size = sizes[indices[i]];
        const char *words = base + offsets[indices[i]] + 4;
        uint32_t key_bytes;
        if (size < head_bytes)
            return i;
        memcpy(&key_bytes, words, 4);
        if (total + key_bytes != size)
            return i;
        for (int64_t j = 0; j < num_fields; j++) {
            uint32_t length;
            memcpy(&length, words + 4 + 4 * j, 4);
            if (length != lengths[j])
                return i;
        }
        starts[i] = offsets[indices[i]] + head_bytes;
    }
    return count;
}
