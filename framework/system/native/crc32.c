/* The CRC32 of zlib, of many short pieces of equal size that lie one after another.

   A call of a library per piece would take longer than the piece. Eight bytes are taken at once, by
   eight tables ("slicing by 8"). The processor works on several pieces at the same time, since none
   depends on another.

   Source: Kounavis, Berry, "A systematic approach to building high performance, software-based, CRC
   generators", ISCC 2005. */

#include <stdint.h>

#define POLYNOMIAL 0xEDB88320u
#define SLICES 8

static uint32_t table[SLICES][256];

__attribute__((constructor)) static void fill(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ (crc & 1 ? POLYNOMIAL : 0);
        table[0][byte] = crc;
    }
    for (int slice = 1; slice < SLICES; slice++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t before = table[slice - 1][byte];
            table[slice][byte] = (before >> 8) ^ table[0][before & 255];
        }
}

static inline uint32_t word(const uint8_t *bytes)
{
    return bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

static inline uint32_t extended(uint32_t crc, const uint8_t *bytes, int64_t size)
{
    crc = ~crc;
    for (; size >= 8; size -= 8, bytes += 8) {
        uint32_t low = word(bytes) ^ crc, high = word(bytes + 4);
        crc = table[7][low & 255] ^ table[6][low >> 8 & 255] ^ table[5][low >> 16 & 255] ^
              table[4][low >> 24] ^ table[3][high & 255] ^ table[2][high >> 8 & 255] ^
              table[1][high >> 16 & 255] ^ table[0][high >> 24];
    }
    for (; size > 0; size--, bytes++)
        crc = (crc >> 8) ^ table[0][(crc ^ *bytes) & 255];
    return ~crc;
}

/* Extend each of count checksums by size bytes. The bytes of checksum i begin at base + i * size. */
void paceline_crc32(const uint8_t *base, int64_t size, int64_t count, uint32_t *crcs)
{
    for (int64_t i = 0; i < count; i++)
        crcs[i] = extended(crcs[i], base + i * size, size);
}
