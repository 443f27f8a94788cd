"""Calls that wait for the device are noted with their line."""

import torch

from framework.diagnosis.code_lines import METHODS, WaitingCalls


def test_calls_are_noted_between_start_and_stop():
    calls = WaitingCalls()
    value = torch.tensor(2.0)
    calls.start()
    try:
        values = [value.item() for _ in range(3)]
        chosen = 1 if value > 1 else 0
        number = float(value)
    finally:
        calls.stop()
    value.item()
    assert (values, chosen, number) == ([2.0] * 3, 1, 2.0)
    noted = {(sync.call, sync.count) for sync in calls.noted()}
    assert noted == {("item()", 3), ("bool()", 1), ("float()", 1)}
    assert all(sync.file == __file__ and sync.text for sync in calls.noted())


def test_the_methods_are_put_back():
    before = [getattr(torch.Tensor, name) for name in METHODS]
    own = [name in vars(torch.Tensor) for name in METHODS]
    calls = WaitingCalls()
    calls.start()
    calls.stop()
    calls.stop()
    assert [getattr(torch.Tensor, name) for name in METHODS] == before
    assert [name in vars(torch.Tensor) for name in METHODS] == own
