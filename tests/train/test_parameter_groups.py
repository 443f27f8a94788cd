import pytest
import torch
from torch import nn

from framework.errors import ConfigError
from framework.train.parameter_groups import check_options, optimizer_keys, parameter_groups


def named():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    return dict(model.named_parameters())


def grouped(groups, lr=0.5):
    return parameter_groups(named().items(), groups, lr)


def test_the_optimizer_gets_its_own_keys():
    block = {"_target_": "x", "lr": 0.1, "scaling": "none", "reference_batch_size": 1, "groups": {}}
    assert optimizer_keys(block) == {"_target_": "x", "lr": 0.1}


def test_the_parameters_of_no_group_come_first():
    first, second = grouped({"norm": {"match": "1.*", "weight_decay": 0}})
    assert [weight.shape for weight in first["params"]] == [(2, 2), (2,)]
    assert second.keys() == {"params", "weight_decay"}
    assert len(second["params"]) == 2


def test_a_group_has_its_factor_of_the_rate_and_its_end():
    (_, biases) = grouped({"biases": {"match": ["*.bias"], "lr_factor": 64, "until": 0.3}})
    assert (biases["lr"], biases["until"], len(biases["params"])) == (32, 0.3, 2)


def test_groups_may_have_all_parameters():
    groups = grouped({"linear": {"match": "0.*"}, "norm": {"match": "1.*"}})
    assert [len(group["params"]) for group in groups] == [2, 2]


@pytest.mark.parametrize(
    ("groups", "lr", "words"),
    [
        ({"a": {"match": "norm*"}}, 0.5, r"optim.groups.a.match = norm\*: matches no parameter"),
        (
            {"a": {"match": "*.bias"}, "b": {"match": "1.*"}},
            0.5,
            "groups.b.* matches 1.bias, which another group has",
        ),
        ({"a": {"match": "*", "lr_factor": 2}}, None, "optim.lr, which is not set"),
    ],
)
def test_what_names_no_parameters_of_its_own_is_refused(groups, lr, words):
    with pytest.raises(ConfigError, match=f"C147.*{words}"):
        grouped(groups, lr)


def test_an_option_that_torch_would_ignore_is_refused():
    optimizer = torch.optim.SGD(named().values(), lr=0.1)
    check_options(optimizer, {"a": {"match": "*", "until": 1, "momentum": 0.5}})
    with pytest.raises(ConfigError, match=r"C102.*groups.a.lr = 1: neither match, lr_factor"):
        check_options(optimizer, {"a": {"match": "*", "lr": 1}})
