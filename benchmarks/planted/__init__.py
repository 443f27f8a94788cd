"""Deliberately slow set-ups, each with a cause that ``paceline diagnose`` must name."""
