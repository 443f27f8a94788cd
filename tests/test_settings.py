import pytest

from framework.errors import ConfigError
from framework.settings import GROUPS, RULES, check

VALUES = {
    **dict.fromkeys(RULES),
    "seed": 0,
    "epochs": 1,
    "batch_size": 32,
    "accumulate": 1,
    "report_every": 10,
    "shuffle": True,
    "device": "auto",
    "allow_targets": [],
}
CONFIG = {**VALUES, **{group: {} for group in GROUPS}, "workers": {"num": 2, "kind": "thread"}}


def test_a_right_configuration_passes():
    check(CONFIG)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("epochs", 0),
        ("epochs", 1.5),
        ("epochs", "3"),
        ("epochs", None),
        ("epochs", True),
        ("batch_size", 0),
        ("batch_size", -4),
        ("accumulate", 0),
        ("rank_batch_size", 0),
        ("limit", 0),
        ("max_steps", 0),
        ("seed", -1),
        ("clip_norm", -0.1),
        ("clip_norm", "big"),
        ("shuffle", 1),
        ("shuffle", "yes"),
        ("device", None),
        ("report_every", 0),
        ("allow_targets", "mypkg"),
        ("prepare", "digits"),
    ],
)
def test_a_value_that_cannot_be_is_named(key, value):
    with pytest.raises(ConfigError, match=rf"C101.*{key} = "):
        check({**CONFIG, key: value})


@pytest.mark.parametrize(
    ("key", "value"), [("clip_norm", 1), ("clip_norm", 0.5), ("limit", 5), ("validate_every", 1), ("prepare", {})]
)
def test_a_value_that_can_be_passes(key, value):
    check({**CONFIG, key: value})


@pytest.mark.parametrize("key", ["epochs", "shuffle", "seed", "device"])
def test_a_key_that_is_missing_is_named(key):
    with pytest.raises(ConfigError, match=rf"C101.*{key} = None"):
        check({name: value for name, value in CONFIG.items() if name != key})


def test_a_mistyped_key_is_answered_with_the_nearest():
    with pytest.raises(ConfigError, match=r"C102.*epoch = 3.*did you mean 'epochs'"):
        check({**CONFIG, "epoch": 3})


def test_the_least_value_is_said():
    with pytest.raises(ConfigError, match="give int, at least 1"):
        check({**CONFIG, "batch_size": 0})


@pytest.mark.parametrize("group", [group for group in GROUPS if group != "sink"])
def test_a_group_without_a_choice_is_named(group):
    with pytest.raises(ConfigError, match=rf"C101.*{group} = None"):
        check({**CONFIG, group: None})


def test_a_run_may_have_no_sink():
    check({**CONFIG, "sink": None})
    with pytest.raises(ConfigError, match=r"C101.*sink = 3"):
        check({**CONFIG, "sink": 3})


@pytest.mark.parametrize("num", [-1, 1.5, "2", None, True])
def test_a_number_of_workers_that_cannot_be_is_named(num):
    with pytest.raises(ConfigError, match=r"C101.*workers\.num"):
        check({**CONFIG, "workers": {"num": num, "kind": "thread"}})


def test_an_unknown_kind_of_worker_is_named():
    with pytest.raises(ConfigError, match=r"C107.*workers\.kind = fiber"):
        check({**CONFIG, "workers": {"num": 0, "kind": "fiber"}})


def test_an_unknown_key_of_workers_is_answered_with_the_nearest():
    with pytest.raises(ConfigError, match=r"C102.*workers\.nums.*did you mean 'workers\.num'"):
        check({**CONFIG, "workers": {"num": 0, "kind": "thread", "nums": 1}})
