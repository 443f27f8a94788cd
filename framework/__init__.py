"""Paceline: no step waits for data, and the user always knows where the time goes."""

__version__ = "0.1.0"
