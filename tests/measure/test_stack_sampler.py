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
    first = sampler.lines()[0]
    assert first.place[:2] == (__file__, line_of("# the planted" + " line"))
    assert first.place.function == "slow"
    assert first.place.text.startswith("time.sleep")
    assert first.seconds > sampler.total_s / 2
    assert first.python_s == first.seconds


def test_a_label_says_what_ran(sampler):
    sampler.label = "one"
    slow()
    sampler.label = "two"
    slow()
    sampler.stop()
    labels = {line.label for line in sampler.lines() if line.place.function == "slow"}
    assert labels == {"one", "two"}


def test_layers_are_charged_to_their_caller_but_are_no_python_of_the_caller(sampler):
    layers = nn.Sequential(*(nn.Identity() for _ in range(50)))
    x = torch.zeros(1)
    end = time.perf_counter() + 0.2
    while time.perf_counter() < end:
        layers(x)
    sampler.stop()
    lines = [line for line in sampler.lines() if line.place.text == "layers(x)"]
    seconds = sum(line.seconds for line in lines)
    assert seconds > 0
    assert sum(line.python_s for line in lines) < seconds / 2


def test_python_that_keeps_the_lock_is_seen_at_its_line(sampler):
    x = torch.zeros(1)

    def share_of_the_busy_line():
        for _ in range(500):
            total = sum(number * number for number in range(10_000))  # the busy line
            x.add_(total)
        lines = sampler.lines()
        busy = [line for line in lines if "# the busy" in line.place.text]
        return sum(line.python_s for line in busy) / sum(line.python_s for line in lines)

    # Beside other programs a few samples may weigh most of the time, wherever they fall.
    assert any(share_of_the_busy_line() > 0.5 for _ in range(20))
