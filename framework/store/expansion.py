"""How much a compressed part of a file may expand."""

# Masks, the most compressible data that people keep, shrink 150 to 300 times. Deflate could
# shrink zeros 1032 times, and other formats any number of times.
MOST_EXPANSION = 300
MOST_SMALL_BYTES = 256 << 20  # which no reader minds, whatever the size of the file


def most_bytes(stored: int) -> int:
    """Return the most bytes that a part of ``stored`` bytes may have when it is decompressed.

    Args:
        stored: The bytes of the part in its file, or of the file.
    """
    return max(MOST_SMALL_BYTES, MOST_EXPANSION * stored)
