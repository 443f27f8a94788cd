"""A CUDA device that does not exist, for tests of code that orders work by streams and events.

The host queues work, and an adversary decides when each stream does it. Memory is reused as torch's
allocators reuse it. A missing wait therefore shows as a wrong number in some of a few hundred
seeded schedules, in seconds and without a GPU.
"""
