"""Parameters by their names and layers: patterns, blocks, groups of the optimizer, and rates."""

import pytest
import torch
from torch import nn

from framework.errors import ConfigError
from framework.model.resnet18 import ResNet18
from framework.parallel.group import HostSyncBatchNorm
from framework.parallel.hang import Exchange
from framework.train import parameter_groups
from framework.train.parameter_groups import SCALINGS, Scaling, check_options, matching, parts_of

NAMES = ["stem.weight", "layers.0.norm1.bias", "layers.1.norm1.bias", "head.weight", "head.bias"]


@pytest.mark.parametrize(
    ("pattern", "number"),
    [
        *(("head", 2), ("head.bias", 1), ("layers.1", 1), ("*.norm?", 2), ("*.bias", 3), ("*", 5)),
        *((["stem", "head"], 3), ("hea", 0), ("bias", 0), ([], 0)),
    ],
)
def test_a_pattern_matches_a_parameter_or_a_module_around_it(pattern, number):
    assert len(matching(pattern, NAMES)) == number


class ScaledNormLinear(nn.Linear):
    """A layer with a matrix."""


@pytest.mark.parametrize(
    ("module", "normalizes"),
    [
        pytest.param(nn.BatchNorm2d(2), True, id="batch norm"),
        pytest.param(HostSyncBatchNorm(nn.BatchNorm2d(2), Exchange()), True, id="synchronized"),
        pytest.param(nn.BatchNorm2d(2, affine=False), True, id="no parameters"),
        pytest.param(nn.LayerNorm(2), True, id="layer norm"),
        pytest.param(ScaledNormLinear(2, 2), False, id="another layer of such a name"),
    ],
)
def test_modules_that_normalize_are_known(module, normalizes):
    assert parameter_groups.is_normalization(module) == normalizes


class Transformer(nn.Module):
    """As in other libraries: an encoder with a list of layers, beside parameters of its own."""

    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.zeros(2))
        self.patches = nn.Linear(2, 2)
        layer = nn.TransformerEncoderLayer(2, 1, 4, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, nn.LayerNorm(2), enable_nested_tensor=False)
        self.pool = nn.Identity()
        self.head = nn.Linear(2, 1)


class Inverted(nn.Module):
    """A block with sequences of layers inside."""

    def __init__(self):
        super().__init__()
        first, second = (nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)) for _ in range(2))
        self.inside = nn.Sequential(first, second)


@pytest.mark.parametrize(
    ("make", "names"),
    [
        pytest.param(
            Transformer,
            ["patches", *(f"encoder.layers.{number}" for number in range(3)), "head"],
            id="transformer",
        ),
        pytest.param(
            lambda: ResNet18(3, 10, "small"),
            [*(f"features.{number}" for number in range(9)), "head"],
            id="ResNet",
        ),
        pytest.param(
            lambda: nn.Sequential(Inverted(), Inverted(), nn.Linear(2, 1)),
            ["0", "1", "2"],
            id="blocks with sequences",
        ),
        pytest.param(lambda: nn.Linear(2, 2), [], id="one layer"),
    ],
)
def test_every_parameter_has_a_block_in_the_order_of_the_model(make, names):
    model = make()
    blocks = parameter_groups.ModelBlocks(model)
    assert blocks.names == names
    assert blocks.number_of.keys() == dict(model.named_parameters()).keys()
    assert set(blocks.number_of.values()) == set(range(blocks.depth))


def small_model():
    return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))


def grouped(groups=None, lr=0.5, model=None, **block):
    return parameter_groups.parameter_groups(
        model or small_model(), {"groups": groups, "lr": lr, **block}
    )


@pytest.mark.parametrize(
    ("model", "entries", "free"),
    [
        pytest.param(small_model(), ["norm"], ["1.weight", "1.bias"], id="norm"),
        pytest.param(small_model(), ["bias"], ["0.bias", "1.bias"], id="bias"),
        pytest.param(
            small_model(), ["0", "1.w*"], ["0.weight", "0.bias", "1.weight"], id="patterns"
        ),
    ],
)
def test_parameters_that_are_named_have_no_weight_decay(model, entries, free):
    decayed, own = grouped(model=model, no_decay=entries)
    names = {id(weight): name for name, weight in model.named_parameters()}
    assert [names[id(weight)] for weight in own["params"]] == free
    assert own["weight_decay"] == 0
    assert "weight_decay" not in decayed


def test_a_group_is_cut_by_weight_decay():
    groups = grouped([{"match": "1", "lr": 1.0, "weight_decay": 0.5}], no_decay=["bias"])
    assert [(group["name"], group.get("weight_decay")) for group in groups] == [
        *(("others", None), ("others, no decay", 0.0), ("1", 0.5), ("1, no decay", 0.0)),
    ]


def deep_model():
    """Return a model of three blocks: a norm belongs to the block before it."""
    block = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), block, nn.Linear(2, 1))


def test_the_rate_falls_from_block_to_block():
    groups = grouped(model=deep_model(), layer_decay=0.5)
    rates = [(group["lr"], len(group["params"])) for group in groups]
    assert rates == [(0.125, 4), (0.25, 4), (0.5, 2)]


def test_a_rate_that_was_typed_does_not_fall_but_a_factor_does():
    typed = [{"match": "0", "lr": 3.0}, {"match": "2", "lr_factor": 10}]
    groups = grouped(typed, model=deep_model(), layer_decay=0.5)
    rates = {group["name"]: group["lr"] for group in groups}
    assert rates == {"others, block 0": 0.125, "others, block 2": 0.5, "0": 3.0, "2, block 1": 2.5}


LINEAR, NO_BIAS = nn.Linear(2, 2), nn.Linear(2, 2, bias=False)
TWO_GROUPS = {"a": {"match": "*.bias"}, "b": {"match": "1.*"}}
TWICE = {"a": {"match": "*", "lr_factor": 2}}


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ({"groups": {"a": {"match": "norm*"}}}, r"C147.*groups.a.match = norm\*: matches no"),
        ({"groups": TWO_GROUPS}, "C147.*groups.b.* matches 1.bias, which another group has"),
        ({"groups": TWICE, "lr": None}, "C147.*optim.lr, which is not set"),
        ({"no_decay": ["bais"]}, r"C310.*\[bais\]: 'bais' matches no parameter; .* 0, 1"),
        ({"no_decay": ["norm"], "model": LINEAR}, "C310.*normalization.*has weight, bias"),
        ({"no_decay": ["bias"], "model": NO_BIAS}, "C310.*ends in bias"),
        ({"layer_decay": 0.5, "lr": None}, "C311.*optim.lr, which is not set"),
    ],
    ids=["no match", "shared", "factor", "typo", "no norm", "no bias", "decay of no rate"],
)
def test_groups_without_parameters_or_rates_of_their_own_are_refused(block, words):
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


@pytest.mark.parametrize(
    ("rule", "factor"),
    [("none", 1), ("linear", 8), ("sqrt", 8**0.5), ("cube_root_squared", 4)],
    ids=SCALINGS,
)
def test_the_rate_grows_by_a_power_of_the_ratio_of_batch_sizes(rule, factor):
    assert Scaling(rule, 32, 256).factor == pytest.approx(factor)


def test_groups_and_no_decay_name_what_an_objective_owns():
    owned = {f"objective.head.{name}": nn.Parameter(torch.zeros(2)) for name in ("weight", "bias")}
    block = {"lr": 0.1, "groups": {"own": {"match": "*.weight", "lr_factor": 10}}}
    model = nn.Linear(2, 2)
    groups = parameter_groups.parameter_groups(model, {**block, "no_decay": ["bias"]}, owned)
    shown = [(group["name"], group.get("lr"), len(group["params"])) for group in groups]
    model_groups = [("others", None, 1), ("others, no decay", None, 1)]
    assert shown == [*model_groups, ("own", 1.0, 1), ("objective, no decay", None, 1)]


PARTS = {
    "_target_": "torch.optim.SGD",
    "lr": 0.1,
    "parts": {"one": {"match": "0"}, "two": {"match": ["2*"], "_target_": "torch.optim.Adam"}},
}


def test_parts_have_what_they_match_and_others_the_rest():
    names = ["0.weight", "0.bias", "1.weight", "2.weight"]
    parts = parts_of(PARTS, names)
    assert parts == {"one": names[:2], "two": names[3:], "others": names[2:3]}
    assert parts_of(PARTS, [names[0], names[3]]) == {"one": names[:1], "two": names[3:]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"parts": {"one": {"match": "head"}}}, "optim.parts.one.match = head: matches no"),
        ({"parts": {"a": {"match": "0"}, "b": {"match": "*"}}}, "matches 0.weight, which another"),
        ({"no_decay": ["bias"]}, r"optim.no_decay = .*every one is in a part"),
    ],
)
def test_parts_that_do_not_divide_the_model_are_refused(changes, message):
    with pytest.raises(ConfigError, match=f"C362.*{message}"):
        parts_of({**PARTS, **changes}, ["0.weight", "2.weight"])


def test_depth_is_counted_inside_a_part():
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(4)))
    names = [name for name, _ in model.named_parameters() if name[0] in "12"]
    block = {"lr": 1.0, "layer_decay": 0.5, "no_decay": ["bias"]}
    groups = parameter_groups.parameter_groups(model, block, only=names, part="body")
    rates = {group["name"]: group["lr"] for group in groups}
    whole = {"body, block 0": 0.5, "body, block 0, no decay": 0.5}
    assert rates == {**whole, "body, block 1": 1.0, "body, block 1, no decay": 1.0}
    assert {group["part"] for group in groups} == {"body"}
    with pytest.raises(ConfigError, match=r"C147\]: optim.parts.body.groups.x.match = 3"):
        parameter_groups.parameter_groups(
            model, {"groups": {"x": {"match": "3"}}}, only=names, part="body"
        )
