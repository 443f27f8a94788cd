"""Measure a grid of choices, a process for each measurement, and compare two such files."""
