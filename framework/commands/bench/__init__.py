"""The grid of choices, a process per cell, and the comparison of two such files."""
