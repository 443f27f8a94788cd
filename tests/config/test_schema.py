import pytest
from omegaconf import OmegaConf

from framework.cli.paths import CONF
from framework.config.schema import (
    CHOICE_RULES,
    GROUPS,
    NAMED,
    RULES,
    RULES_BY_BLOCK,
    check,
    seconds_of,
)
from framework.errors import CheckpointError, ConfigError

VALUES = {
    **dict.fromkeys(RULES),
    "seed": 0,
    "epochs": 1,
    "batch_size": 32,
    "accumulate": 1,
    "report_every": 10,
    "shuffle": True,
    "last": "short",
    "device": "auto",
    "search_metric": "loss",
    "allow_targets": [],
    "collate": "pad",
    "verify": "first_epoch",
    "clock": True,
    "channels_last": False,
    "compile": False,
    "cuda_graph": False,
    "deterministic": False,
    "on_nan": "stop",
    "max_skips": 20,
    "ema_every": 1,
    "ema_ramp": 0.0,
    "ema_lookahead": False,
}
WORKERS = {"num": 2, "kind": "thread", "start_method": None, "timeout_s": 300}
ORDER = {"block_records": None, "window_blocks": 1}
CHECKPOINT = {"every_steps": None, "every_epochs": 1, "every_s": 600, "keep": 2}
RESUME = {"run": None, "auto": False, "allow": []}
INIT = {"weights": None, "average": True, "skip": [], "rename": None}
BEST = {"metric": None, "mode": "auto"}
STOP = {**BEST, "patience": None, "after": None}
BLOCKS = {
    "workers": WORKERS,
    "order": ORDER,
    "checkpoint": CHECKPOINT,
    "resume": RESUME,
    "init": INIT,
    "best": BEST,
    "stop": STOP,
}
PARTS = {group: {"_target_": f"framework.{group}.some.Thing"} for group in GROUPS}
DATA = {
    "source": {"_target_": "framework.data.some.Source"},
    "train": "train.h5",
    "val": None,
    "writer": None,
}
CONFIG = {**VALUES, **PARTS, **BLOCKS, "data": DATA, "sink": {}, "metrics": {}, "watchers": {}}


def test_every_option_of_train_has_a_rule():
    options = OmegaConf.to_container(OmegaConf.load(CONF / "train.yaml"))
    blocks = RULES_BY_BLOCK | CHOICE_RULES
    for key in options.keys() - {"defaults", "hydra"}:
        if key in NAMED:
            assert options[key] == {}
        elif isinstance(options[key], dict):
            assert set(options[key]) <= set(blocks[key])
        else:
            assert key in RULES


def _workers(**changes):
    check({**CONFIG, "workers": {**WORKERS, **changes}})


def _order(**changes):
    check({**CONFIG, "order": {**ORDER, **changes}})


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
    ("key", "value"),
    [("clip_norm", 1), ("clip_norm", 0.5), ("limit", 5), ("validate_every", 1), ("prepare", {})],
)
def test_a_value_that_can_be_passes(key, value):
    check({**CONFIG, key: value})


@pytest.mark.parametrize("key", ["epochs", "shuffle", "seed", "device"])
def test_a_key_that_is_missing_is_named(key):
    with pytest.raises(ConfigError, match=rf"C101.*{key} = None"):
        check({name: value for name, value in CONFIG.items() if name != key})


@pytest.mark.parametrize("group", [group for group in GROUPS if group not in NAMED])
def test_a_group_without_a_choice_is_named(group):
    with pytest.raises(ConfigError, match=rf"C101.*{group} = null"):
        check({**CONFIG, group: None})


@pytest.mark.parametrize(
    ("key", "value"), [("ema_every", 5), ("ema_ramp", 3.0), ("ema_lookahead", True)]
)
def test_an_option_of_an_average_that_is_not_kept_is_refused(key, value):
    with pytest.raises(ConfigError, match=rf"C148.*{key} = {value}.*set ema_decay"):
        check({**CONFIG, key: value})
    check({**CONFIG, key: value, "ema_decay": 0.95})


def _groups(**groups):
    check({**CONFIG, "optim": {**PARTS["optim"], "groups": groups}})


@pytest.mark.parametrize(
    ("group", "words"),
    [
        ("*.bias", r"optim.groups.a = \*.bias: does not say which parameters"),
        ({"lr_factor": 2}, "does not say which parameters"),
        ({"match": 3}, r"a.match = 3: must be a name of parameters, or a list of them"),
        ({"match": "x", "lr_factor": -1}, "a.lr_factor = -1: must be a number of at least 0"),
        ({"match": "x", "until": 2}, "a.until = 2: must be a number from 0 to 1"),
    ],
)
def test_groups_of_parameters_that_are_not_described_are_named(group, words):
    with pytest.raises(ConfigError, match=f"C147.*{words}"):
        _groups(a=group)


@pytest.mark.parametrize("num", [-1, 1.5, "2", True])
def test_a_number_of_workers_that_cannot_be_is_named(num):
    with pytest.raises(ConfigError, match=r"C101.*workers\.num"):
        _workers(num=num)


@pytest.mark.parametrize("timeout_s", [0, -1, None, "5", True])
def test_a_timeout_that_cannot_be_is_named(timeout_s):
    with pytest.raises(ConfigError, match=r"C101.*workers\.timeout_s"):
        _workers(timeout_s=timeout_s)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("block_records", 0),
        ("block_records", "8"),
        ("window_blocks", None),
        ("window_blocks", True),
    ],
)
def test_a_block_that_cannot_be_is_named(key, value):
    with pytest.raises(ConfigError, match=rf"C126.*order\.{key} = "):
        _order(**{key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("every_steps", 0),
        ("every_steps", 1.5),
        ("every_s", 0),
        ("every_s", "10"),
        ("every_s", True),
        ("keep", 0),
        ("keep", None),
    ],
)
def test_a_time_to_save_that_cannot_be_is_named(key, value):
    with pytest.raises(ConfigError, match=rf'^error\[C101\]: checkpoint.{key} = "?{value}"?: '):
        check({**CONFIG, "checkpoint": {**CHECKPOINT, key: value}})


@pytest.mark.parametrize(
    "changes",
    [
        {"model": {}},
        {"optim": {"_target_": 3}},
        {"sink": {"jsonl": 3}},
        {"sink": {"x": {}}},
        {"data": {**DATA, "source": 3}},
        {"data": {**DATA, "source": None}},
        {"data": {**DATA, "writer": {}}},
        {"data": {**DATA, "train": 3}},
        {"data": {**DATA, "train": None}},
        {"data": {name: DATA[name] for name in ("source", "train")}},
    ],
)
def test_what_describes_no_part_and_no_path_is_named(changes):
    with pytest.raises(ConfigError, match=rf"^error\[C101\]: {next(iter(changes))}\S* = "):
        check({**CONFIG, **changes})


@pytest.mark.parametrize(
    "changes",
    [{"seed": 1 << 63}, {"data": {**DATA, "source": {**DATA["source"], "sizes": [1, 1 << 70]}}}],
)
def test_whole_numbers_that_no_tensor_holds_are_named(changes):
    with pytest.raises(ConfigError, match=r"^error\[C101\]: (seed|data.source.sizes.1) = \d+"):
        check({**CONFIG, **changes})


def _virtual(count, processes=1, hosts=1, **changes):
    block = {
        **PARTS["parallel"],
        "virtual_ranks": count,
        "num_processes": processes,
        "num_nodes": hosts,
    }
    check({**CONFIG, **changes, "parallel": block})


@pytest.mark.parametrize(
    ("count", "processes", "hosts"),
    [(4, 1, 1), (4, 2, 2), (6, 3, 1), (6, 1, 1), (12, 3, 1), (5, 5, 1)],
)
def test_virtual_ranks_that_can_be_dealt_out_pass(count, processes, hosts):
    _virtual(count, processes, hosts)


@pytest.mark.parametrize(
    ("count", "processes", "hosts"), [(4, 3, 1), (4, 8, 1), (6, 2, 1), (12, 2, 2), (3, 1, 2)]
)
def test_virtual_ranks_that_would_be_added_in_another_order_are_refused(count, processes, hosts):
    with pytest.raises(
        ConfigError, match=rf"C143.*virtual_ranks = {count}: .* {processes * hosts} processes"
    ):
        _virtual(count, processes, hosts)


def test_under_a_launcher_its_number_of_processes_counts(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    _virtual(4, processes=2)  # of nobody: not under a launcher
    monkeypatch.setenv("RANK", "0")
    _virtual(3, processes=2)
    with pytest.raises(ConfigError, match="C143"):
        _virtual(4, processes=2)


def test_virtual_ranks_are_the_passes_of_a_step():
    with pytest.raises(ConfigError, match=r"C144.*accumulate = 2"):
        _virtual(4, accumulate=2)


SOURCE_OF_OBJECTS = {"_target_": "framework.data.dataset.dataset_source"}
CLIPS = {"_target_": "mine.Clips"}


@pytest.mark.parametrize(
    ("source", "train", "val", "fix"),
    [
        (SOURCE_OF_OBJECTS, "x.h5", None, "data.train={_target_: mine.Clips}"),
        (SOURCE_OF_OBJECTS, "my.data.Words", None, "data.train={_target_: my.data.Words}"),
        (SOURCE_OF_OBJECTS, {"split": "train"}, None, "data.train={_target_: "),
        (SOURCE_OF_OBJECTS, CLIPS, "x.h5", "data.val={_target_: mine.Clips}"),
        (DATA["source"], CLIPS, None, "add data=dataset"),
        (DATA["source"], {"web": "x.h5"}, None, "add data=mixture"),
        ({**DATA["source"], "weights": None}, CLIPS, None, "add data=dataset"),
        (DATA["source"], "x.h5", CLIPS, "data=dataloader"),
    ],
)
def test_data_is_a_path_or_a_block_as_its_choice_wants(source, train, val, fix):
    with pytest.raises(ConfigError, match=r"C233\]: data\.") as refused:
        check({**CONFIG, "data": {**DATA, "source": source, "train": train, "val": val}})
    assert fix in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "data", "is_right"),
    [
        (None, DATA, False),
        ("process", DATA, True),
        (None, {**DATA, "source": SOURCE_OF_OBJECTS, "train": CLIPS}, True),
    ],
)
def test_only_processes_have_a_start_method(kind, data, is_right):
    workers = {**WORKERS, "kind": kind, "start_method": "spawn"}
    config = {**CONFIG, "workers": workers, "data": data}
    if is_right:
        check(config)
        return
    with pytest.raises(ConfigError, match="C107"):
        check(config)


@pytest.mark.parametrize(
    ("key", "value"), [("average", False), ("skip", ["head"]), ("rename", {"fc": "head"})]
)
def test_an_option_of_weights_that_are_not_read_is_refused(key, value):
    with pytest.raises(ConfigError, match=rf"C301\]: init.{key} = .*no weights are read"):
        check({**CONFIG, "init": {**INIT, key: value}})


def test_missing_weights_are_refused_unless_the_run_is_resumed():
    init = {**INIT, "weights": "nowhere.pt"}
    check({**CONFIG, "init": init, "resume": {**RESUME, "run": "RUN"}})
    with pytest.raises(CheckpointError, match="K110"):
        check({**CONFIG, "init": init})


def _with(**changes):
    blocks = {"best": BEST, "stop": STOP, "data": {**DATA, "val": "val.h5"}}
    for name, block in changes.items():
        blocks[name] = {**blocks.get(name, {}), **block}
    check({**CONFIG, **blocks})


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90m", 5400), ("2h", 7200), ("1d", 86400), ("1h30m", 5400), ("0.5s", 0.5)],
)
def test_a_time_has_units(text, seconds):
    assert seconds_of("stop.after", text) == seconds
    _with(stop={"after": text})


@pytest.mark.parametrize("text", ["", "2", "h", "2x", "0h", "-1h", "1h 30m", "2hours", "1e3s"])
def test_what_is_no_time_is_refused(text):
    with pytest.raises(ConfigError, match=r"C337\]: stop\.after = "):
        _with(stop={"after": text})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"stop": {"metric": "loss"}}, r"C336\]: stop\.metric = loss: .*stop\.patience"),
        ({"stop": {"mode": "min"}}, r"C336\]: stop\.mode = min"),
        ({"best": {"mode": "max"}}, r"C336\]: best\.mode = max"),
        ({"best": {"mode": "most"}}, r"C101\]: best\.mode = most"),
        ({"stop": {"patience": 0}}, r"C101\]: stop\.patience = 0"),
        ({"metrics": {"a.b": {"_target_": "x.Y"}}}, r"C330\]: metrics\.a\.b"),
    ],
)
def test_what_looks_at_the_validation_is_checked(changes, words):
    with pytest.raises(ConfigError, match=words):
        _with(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"metrics": {"f1": {"_target_": "x.Y"}}},
        {"best": {"metric": "loss"}},
        {"stop": {"patience": 2}},
    ],
)
def test_what_looks_at_the_validation_needs_one(changes):
    _with(**changes)
    with pytest.raises(ConfigError, match="C335"):
        _with(**changes, data={"val": None})


@pytest.mark.parametrize("name", ["a.b", "a b", "1", ""])
def test_a_validation_set_has_a_plain_name(name):
    with pytest.raises(ConfigError, match=r"C330\]: data\.val"):
        _with(data={"val": {name: "a.h5"}})


def test_each_validation_set_is_what_one_may_be():
    _with(data={"val": {"a": "a.h5", "b": "b.h5"}})
    with pytest.raises(ConfigError, match=r"C233\]: data\.val\.b"):
        _with(data={"val": {"a": "a.h5", "b": {"_target_": "mine.Clips"}}})
