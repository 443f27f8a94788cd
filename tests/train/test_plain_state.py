from typing import NamedTuple

import pytest
import torch

from framework.train.plain_state import foreign_value, is_plain


class Pair(NamedTuple):
    a: int
    b: int


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        "text",
        torch.float16,
        torch.device("cpu"),
        torch.Size([2, 3]),
        {"a": [1, (2.5, {0: torch.zeros(1)})]},
    ],
)
def test_what_is_read_again_is_plain(value):
    assert is_plain(value)


@pytest.mark.parametrize("value", [object(), {1, 2}, Pair(1, 2), {(1, 2): 3}, [{"a": b"bytes"}]])
def test_what_is_not_read_again_is_not_plain(value):
    assert not is_plain(value)


def test_what_is_foreign_is_named_with_its_place():
    state = {0: {"exp_avg": torch.zeros(1), "Q": [1, {"a": object()}]}}
    assert foreign_value({"state": state}) == "the optimizer's Q is list with dict with object"


def test_an_option_may_be_foreign():
    groups = [{"lr": 0.1, "params": [0]}, {"lr": 0.1, "clip": print}]
    what = "the optimizer's clip is builtin_function_or_method"
    assert foreign_value({"state": {}, "param_groups": groups}) == what


def test_the_state_of_an_optimizer_is_plain():
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.AdamW([weight])
    weight.sum().backward()
    optimizer.step()
    assert foreign_value(optimizer.state_dict()) == ""
