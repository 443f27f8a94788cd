import pytest
import torch
from torch import nn

from framework.errors import ConfigError
from framework.train.parameter_groups import check_options, optimizer_keys, parameter_groups


def small_model():
    return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))


def grouped(groups=None, lr=0.5, model=None, **block):
    return parameter_groups(model or small_model(), {"groups": groups, "lr": lr, **block})


def test_the_optimizer_gets_its_own_keys():
    block = {"_target_": "x", "lr": 0.1, "scaling": "none", "reference_batch_size": 1, "groups": {}}
    assert optimizer_keys(block) == {"_target_": "x", "lr": 0.1}


def test_the_parameters_of_no_group_come_first():
    first, second = grouped({"norm": {"match": "1.*", "weight_decay": 0}})
    assert [weight.shape for weight in first["params"]] == [(2, 2), (2,)]
    assert second.keys() == {"params", "name", "weight_decay"}
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


def test_groups_may_be_a_list_with_rates_of_their_own():
    others, first, second = grouped(
        [{"match": "0", "lr": 3.0}, {"match": ["1.bias"], "lr_factor": 2}]
    )
    assert ([len(group["params"]) for group in (others, first, second)]) == [1, 2, 1]
    assert "lr" not in others
    assert (first["lr"], second["lr"]) == (3.0, 1.0)
    assert [group["name"] for group in (others, first, second)] == ["others", "0", "1"]


class Foreign(nn.Module):
    """A normalization of another library, and a layer whose name only sounds like one."""

    class ScaleNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(2))

    class NormedLinear(nn.Linear):
        pass

    def __init__(self):
        super().__init__()
        self.norm = self.ScaleNorm()
        self.layer = self.NormedLinear(2, 2)


@pytest.mark.parametrize(
    ("model", "entries", "free"),
    [
        (small_model(), ["norm"], ["1.weight", "1.bias"]),
        (small_model(), ["bias"], ["0.bias", "1.bias"]),
        (small_model(), ["norm", "bias"], ["0.bias", "1.weight", "1.bias"]),
        (small_model(), ["0", "1.w*"], ["0.weight", "0.bias", "1.weight"]),
        (nn.Sequential(nn.GroupNorm(1, 2), nn.Linear(2, 2)), ["norm"], ["0.weight", "0.bias"]),
        (Foreign(), ["norm"], ["norm.scale"]),
    ],
)
def test_what_is_named_has_no_weight_decay(model, entries, free):
    decayed, own = grouped(model=model, no_decay=entries)
    names = {id(weight): name for name, weight in model.named_parameters()}
    assert [names[id(weight)] for weight in own["params"]] == free
    assert own["weight_decay"] == 0
    assert "weight_decay" not in decayed


def test_a_group_is_cut_by_weight_decay():
    groups = grouped([{"match": "1", "lr": 1.0, "weight_decay": 0.5}], no_decay=["bias"])
    assert [group.get("weight_decay") for group in groups] == [None, 0.0, 0.5, 0.0]
    assert [group["name"] for group in groups] == [
        "others",
        "others, no decay",
        "1",
        "1, no decay",
    ]


def deep_model():
    """Return a model of three blocks: a norm belongs to the block before it."""
    block = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), block, nn.Linear(2, 1))


def test_the_rate_falls_from_block_to_block():
    groups = grouped(model=deep_model(), layer_decay=0.5)
    assert [(group["lr"], len(group["params"])) for group in groups] == [
        (0.125, 4),
        (0.25, 4),
        (0.5, 2),
    ]


def test_a_rate_that_was_typed_does_not_fall_but_a_factor_does():
    typed = [{"match": "0", "lr": 3.0}, {"match": "2", "lr_factor": 10}]
    groups = grouped(typed, model=deep_model(), layer_decay=0.5)
    rates = {group["name"]: group["lr"] for group in groups}
    assert rates == {
        "others, block 0": 0.125,
        "others, block 2": 0.5,
        "0": 3.0,
        "2, block 1": 2.5,
    }


@pytest.mark.parametrize(
    ("block", "words"),
    [
        (
            {"no_decay": ["bais"]},
            r"C310.*no_decay = \[bais\]: 'bais' matches no parameter; .* 0, 1",
        ),
        ({"no_decay": ["norm"], "model": nn.Linear(2, 2)}, "C310.*normalization.*has weight, bias"),
        ({"no_decay": ["bias"], "model": nn.Linear(2, 2, bias=False)}, "C310.*ends in bias"),
        ({"layer_decay": 0.5, "lr": None}, "C311.*optim.lr, which is not set"),
    ],
)
def test_what_cannot_be_is_refused(block, words):
    with pytest.raises(ConfigError, match=words):
        grouped(**block)


def test_an_option_that_torch_would_ignore_is_refused():
    optimizer = torch.optim.SGD(small_model().parameters(), lr=0.1)
    group = {"match": "*", "until": 1, "lr": 1, "momentum": 0.5}
    check_options(optimizer, {"groups": {"a": group}})
    with pytest.raises(ConfigError, match=r"C102.*groups.a.beta = 1: neither match, lr, lr_factor"):
        check_options(optimizer, {"groups": {"a": {"match": "*", "beta": 1}}})
    with pytest.raises(ConfigError, match=r"C310.*Rprop has no weight decay"):
        check_options(torch.optim.Rprop(small_model().parameters()), {"no_decay": ["bias"]})
