"""Measure settings of a run, in turn and in processes of their own."""
