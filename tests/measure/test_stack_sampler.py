import time

import pytest
import torch
from torch import nn

from framework.measure.stack_sampler import StackSampler

SLEEP_S = 0.05


def slow():
    time.sleep(SLEEP_S)  # the planted line


def fast():
    return sum(range(10))


def line_of(text):
    with open(__file__, encoding="utf-8") as file:
        return next(number for number, line in enumerate(file, 1) if text in line)


@pytest.fixture
def sampler():
    sampler = StackSampler()
    sampler.start()
    yield sampler
    sampler.stop()


def test_time_goes_to_the_line_that_takes_it(sampler):
    for _ in range(4):
        fast()
        slow()
    sampler.stop()
    (first,) = sampler.largest_lines("", 1, 0.5)
    assert (first.file, first.line) == (__file__, line_of("# the planted" + " line"))
    assert first.function == "slow"
    assert first.text.startswith("time.sleep")


def test_a_label_says_what_ran(sampler):
    for label in ("one", "two"):
        sampler.label = label
        slow()
    sampler.stop()
    for label in ("one", "two"):
        (line,) = sampler.largest_lines(label, 1, 0.0)
        assert (line.part, line.function) == (label, "slow")


def test_layers_are_no_python_of_their_caller(sampler):
    layers = nn.Sequential(*(nn.Identity() for _ in range(50)))
    x = torch.zeros(1)
    end = time.perf_counter() + 0.2
    while time.perf_counter() < end:
        layers(x)
    sampler.stop()
    assert sampler.python_s()[""] < sampler.total_s / 2


def test_python_that_keeps_the_lock_is_seen_at_its_line(sampler):
    x = torch.zeros(1)

    def share_of_the_busy_line():
        for _ in range(500):
            total = sum(number * number for number in range(10_000))  # the busy line
            x.add_(total)
        lines = sampler.largest_lines("", 100, 0.0)
        busy = [line for line in lines if "# the busy" in line.text]
        return sum(line.share for line in busy) / sum(line.share for line in lines)

    # Beside other programs a few samples may weigh most of the time, wherever they fall.
    assert any(share_of_the_busy_line() > 0.5 for _ in range(20))
