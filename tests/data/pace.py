"""A simulated clock. It advances only when work says so, so stages have exact times."""

import threading

import torch

from framework.data import reader, workers
from framework.measure import stopwatch as stages


class Pace(threading.local):
    """A clock for each thread and each forked process. It replaces the clock that reading uses."""

    now = 0.0

    def __call__(self):
        return self.now

    def slowed(self, function, seconds):
        """Return ``function`` such that a call takes exactly ``seconds``, whatever it does."""

        def slow(*arguments, **options):
            start = self.now
            result = function(*arguments, **options)
            self.now = start + seconds
            return result

        return slow


class SlowStore:
    """A real store whose every ``read`` takes a second and every ``damaged`` 20."""

    def __init__(self, store, pace):
        self.store, self.manifest, self.check, self.name, self.close = (
            store,
            store.manifest,
            store.check,
            store.name,
            store.close,
        )
        self.read, self.damaged = pace.slowed(store.read, 1.0), pace.slowed(store.damaged, 20.0)


class SlowTransform:
    """A copy of ``transform`` whose calls take time.

    A call of ``windows`` takes 10 seconds, a call of ``function`` 10,000.
    """

    def __init__(self, transform, pace, function=None):
        self.size, self.antialias, self.num_draws = (
            transform.size,
            transform.antialias,
            transform.num_draws,
        )
        self.windows = pace.slowed(transform.windows, 10.0)
        self.function = None if function is None else pace.slowed(function, 10_000.0)


def slow_reading(monkeypatch):
    """Return a Pace, and slow reading down by it.

    A header takes 2 seconds, decoding 100, scaling 1,000, copying and joining 7 each.
    """
    pace = Pace()
    for module in (stages, reader, workers):
        monkeypatch.setattr(module, "perf_counter", pace)
    for name, seconds in {
        "accepted_header": 2.0,
        "window_pixels": 100.0,
        "scale_into": 1000.0,
        "scaled_image": 1000.0,
        "put_planes": 7.0,
    }.items():
        monkeypatch.setattr(reader, name, pace.slowed(getattr(reader, name), seconds))
    monkeypatch.setattr(torch, "cat", pace.slowed(torch.cat, 7.0))
    return pace
