"""Search for the fastest way to read, or for the batch size, by measuring training steps."""
