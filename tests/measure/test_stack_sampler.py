import sys
import time

import pytest
import torch
from torch import nn

from framework.measure.stack_sampler import StackSampler, charged

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
    assert first.seconds > 0.8 * sampler.total_s
    assert first.python_s == first.seconds


def test_a_label_says_what_ran(sampler):
    sampler.label = "one"
    slow()
    sampler.label = "two"
    slow()
    sampler.stop()
    seconds = dict.fromkeys(("one", "two"), 0.0)
    for line in sampler.lines():
        seconds[line.label] += line.seconds
    assert all(value > SLEEP_S / 2 for value in seconds.values())


def test_layers_are_charged_to_their_caller_but_are_no_python_of_the_caller(sampler):
    layers = nn.Sequential(*(nn.Identity() for _ in range(50)))
    x = torch.zeros(1)
    end = time.perf_counter() + 0.2
    while time.perf_counter() < end:
        layers(x)
    sampler.stop()
    lines = [line for line in sampler.lines() if line.place.text == "layers(x)"]
    assert sum(line.seconds for line in lines) > 0.1
    assert sum(line.python_s for line in lines) < 0.1


def test_the_time_between_a_stop_and_a_start_does_not_count(sampler):
    sampler.stop()
    total_s = sampler.total_s
    slow()
    sampler.start()
    slow()
    sampler.stop()
    assert SLEEP_S / 2 < sampler.total_s - total_s < 1.8 * SLEEP_S


def test_python_that_keeps_the_lock_is_seen_where_it_runs(sampler):
    x = torch.zeros(1)
    end = time.perf_counter() + 0.3
    while time.perf_counter() < end:
        total = sum(number * number for number in range(10_000))  # the busy line
        x += total
    sampler.stop()
    busy = [line for line in sampler.lines() if "# the busy" in line.place.text]
    assert sum(line.python_s for line in busy) > 0.2


def test_the_switch_interval_is_given_back(sampler):
    within = sys.getswitchinterval()
    sampler.stop()
    sampler.stop()
    assert sys.getswitchinterval() > within


def test_the_charged_line_is_the_innermost_of_the_user():
    places = []

    class Watch(nn.Module):
        def forward(self, x):
            places.append(charged(sys._getframe(0)))
            return x

    nn.Sequential(Watch())(torch.zeros(1))
    assert places[0].function == "forward"
    assert charged(None) is None
