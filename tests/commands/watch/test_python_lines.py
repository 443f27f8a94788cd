"""Lines of Python are found by samples, and the time for which they hold the lock."""

import hashlib
import time

from framework.commands.watch.python_lines import (
    lock_share,
)
from tests.commands.watch.loops import Pausing, hooked, loader, train, validate


def python(seconds=0.02):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def test_the_line_that_takes_a_step_is_named():
    with hooked() as hooks:
        train(loader(60), Pausing(), between=lambda: time.sleep(0.02))
    (line, *_) = hooks.sampled.lines()
    assert (line.part, line.function) == ("step", "<lambda>")
    assert line.share > 0.5
    assert "time.sleep" in line.text


def test_validation_between_steps_is_no_part_of_a_step():
    model = Pausing()

    def check():
        validate(loader(2, delay_s=0.02), model)
        model.train()

    with hooked() as hooks:
        train(loader(30), model, between=check)
    assert "__getitem__" not in [line.function for line in hooks.sampled.lines()]


def test_python_holds_the_lock_and_waiting_does_not():
    def share_of_python_is_larger():
        return lock_share(python, 0.3) > lock_share(lambda: time.sleep(0.02), 0.3)

    # Another program that starts or ends in between changes what a thread can count.
    assert any(share_of_python_is_larger() for _ in range(20))
    data = bytes(8 << 20)
    assert 0 <= lock_share(lambda: hashlib.sha256(data), 0.2) <= 1
