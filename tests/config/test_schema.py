"""The options of ``train``: which values each may have, and which exclude each other."""

import copy
import re
from functools import cache

import pytest
from omegaconf import OmegaConf

from framework.config.schema import NAMED, Rule, check, option_rules, seconds_of
from framework.config.targets import CONF
from framework.errors import CheckpointError, ConfigError
from tests.cli.command import config_of

GONE = object()  # the key is taken away


@cache
def usual():
    return config_of("data.train=train.h5", "parallel=virtual", "schedule=cosine")


def checked(**changes):
    """Check a configuration with other values at dotted keys, whose dots are ``__`` here."""
    config = copy.deepcopy(usual())
    for key, value in changes.items():
        *blocks, last = key.split("__")
        node = config
        for name in blocks:
            node = node[name]
        if value is GONE:
            del node[last]
        else:
            node[last] = value
    check(config)


def refused(line, **changes):
    """Check that such a configuration is refused with a line that matches ``line``."""
    with pytest.raises((ConfigError, CheckpointError), match=rf"^error\[{line}"):
        checked(**changes)


def test_every_option_of_train_has_a_rule():
    options = OmegaConf.to_container(OmegaConf.load(CONF / "train.yaml"))
    for key in options.keys() - {"defaults", "hydra", *NAMED}:
        names = (
            [f"{key}.{name}" for name in options[key]] if isinstance(options[key], dict) else [key]
        )
        assert set(names) <= option_rules("train").keys()


# ------------------------------------------------------------------------------ keys and values


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("clip_norm", 0.5), ("sink", None), ("prepare", {}), ("workers__num", None)),
        *(("workers__num", "auto"), ("workers__timeout_s", 0.5), ("order__block_records", 1024)),
        *(("checkpoint__every_s", None), ("verify", "always")),
    ],
)
def test_a_value_that_fits_passes(key, value):
    checked(**{key: value})


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("epochs", 0, r"C101\]: epochs = 0: must be a whole number of at least 1; "),
        ("prepare", "digits", r"C101\]: prepare = digits"),
        ("seed", 1 << 63, r"C101\]: seed = 9223372036854775808: must be .* below 2\*\*63"),
        ("model__width", float("nan"), r"C101\]: model\.width = nan"),
        ("verify", "never", r"C173\]: verify = never"),
        ("on_nan", "ignore", r"C178\]: on_nan = ignore"),
        ("workers__num", "2", r"C101\]: workers\.num = "),
        ("workers__kind", "fiber", r"C107\]: workers\.kind = fiber"),
        ("order__block_records", 0, r"C126\]: order\.block_records = 0"),
        ("loader__depth", 0, r"C126\]: loader\.depth = 0"),
        ("resume__allow", "optim.lr", r"C101\]: resume\.allow = optim\.lr"),
        (
            "freeze",
            "stem",
            r"C312\]: freeze = stem: must be a list of texts or a block of keys, or null \(layers",
        ),
    ],
)
def test_a_value_that_does_not_fit_is_refused(key, value, line):
    refused(line, **{key: value})


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("epochs", r"C101\]: epochs = None"),
        ("prepare", r"C101\]: prepare = null: was taken away"),
        ("data__val", r"C101\]: data\.val"),
        ("optim", r"C101\]: optim = null: nothing is chosen"),
    ],
)
def test_a_key_that_was_taken_away_is_refused(key, line):
    refused(line, **{key: GONE})


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("epoch", r"C102\]: epoch = 8: no such key \(did you mean 'epochs'"),
        ("workers__nums", r"C102\]: workers\.nums = 8: .*did you mean 'workers\.num'"),
        ("order__block_record", r"C102\]: order\.block_record.*'order\.block_records'"),
        ("resume__xyz", r"C102\]: resume\.xyz = 8: no such key"),
    ],
)
def test_an_unknown_key_is_answered_with_the_nearest(key, line):
    refused(line, **{key: 8})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("model", {}), ("model", None), ("optim", {"_target_": 3}), ("sink", {"jsonl": 3})),
        *(("sink", {"x": {}}), ("sink", 3), ("data__source", None), ("data__writer", {})),
        *(("data__train", 3), ("data__train", None), ("data", {"val_transform": None})),
    ],
)
def test_what_describes_no_part_and_no_path_is_refused(key, value):
    name = key.split("__")[0]
    refused(rf"C101\]: {name}\S* = ", **{key: value})


# ------------------------------------------------------------------------------------ data


OBJECTS = {"_target_": "framework.data.dataset.dataset_source"}
STORES = {"_target_": "framework.data.hdf5.hdf5_source"}
MIXTURE = {"_target_": "framework.data.mixture.mixture_source", "weights": None}
CLIPS = {"_target_": "mine.Clips"}


@pytest.mark.parametrize(
    ("source", "train", "val", "fix"),
    [
        (OBJECTS, "x.h5", None, "data.train={_target_: mine.Clips}"),
        (OBJECTS, "my.data.Words", None, "data.train={_target_: my.data.Words}"),
        (OBJECTS, {"split": "train"}, None, "data.train={_target_: "),
        (OBJECTS, CLIPS, "x.h5", "data.val={_target_: mine.Clips}"),
        (STORES, CLIPS, None, "add data=dataset"),
        (STORES, {"web": "x.h5"}, None, "add data=mixture"),
        (STORES, "x.h5", CLIPS, "data=dataloader"),
        (STORES, "x.h5", {"a": "a.h5", "b": CLIPS}, "data=dataloader"),
    ],
)
def test_data_of_another_form_than_its_choice_reads_is_refused(source, train, val, fix):
    line = rf"C233\]: data\..*{re.escape(fix)}"
    refused(line, data__source=source, data__train=train, data__val=val)


@pytest.mark.parametrize(
    ("source", "given"),
    [(OBJECTS, CLIPS), (MIXTURE, {"web": "x.h5"}), (STORES, "x.h5")],
    ids=["object", "mixture", "store"],
)
def test_data_of_the_form_that_its_choice_reads_passes(source, given):
    checked(data__source=source, data__train=given, data__val=given)


def test_validation_sets_have_plain_names():
    checked(data__val={"a": "a.h5", "b": "b.h5"})
    for name in ("a.b", "a b", "1", ""):
        refused(r"C330\]: data\.val", data__val={name: "a.h5"})


# ------------------------------------------------------------------- options that need each other


def test_only_processes_have_a_start_method():
    checked(workers__kind="process", workers__start_method="spawn")
    # Objects are read by processes.
    checked(workers__start_method="spawn", data__source=OBJECTS, data__train=CLIPS)
    refused(r"C107\]: workers\.start_method = fork.*not started so", workers__start_method="fork")


@pytest.mark.parametrize(
    ("key", "value"), [("ema_every", 5), ("ema_ramp", 3.0), ("ema_lookahead", True)]
)
def test_an_option_of_an_average_that_is_not_kept_is_refused(key, value):
    refused(rf"C148\]: {key} = {value}.*set ema_decay", **{key: value})
    checked(**{key: value}, ema_decay=0.95)


@pytest.mark.parametrize(
    ("group", "words"),
    [
        ("*.bias", r"optim\.groups\.a = \*\.bias: does not say which parameters"),
        ({"match": 3}, r"a\.match = 3: must be a name of parameters, or a list of them"),
        ({"match": "x", "lr_factor": -1}, r"a\.lr_factor = -1: must be a number of at least 0"),
        ({"match": "x", "until": 2}, r"a\.until = 2: must be a number from 0 to 1"),
        ({"match": "x", "lr": 1, "lr_factor": 2}, r"a\.lr = 1: has a factor on optim\.lr, too"),
    ],
)
def test_groups_of_parameters_that_are_not_described_are_refused(group, words):
    checked(optim__groups={"a": {"match": ["x", "y*"], "lr_factor": 64, "until": 1}})
    refused(rf"C147\]: .*{words}", optim__groups={"a": group})


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"critic": {"lr": 0.1}}, "optim.parts.critic = .*says which parameters"),
        ({"a.b": {"match": "D"}}, r"optim.parts.a.b = .*says which parameters"),
        ({"others": {"match": "D"}}, "optim.parts.others.*no part has"),
        ({"critic": {"match": "D", "scaling": "sqrt"}}, "critic.scaling.*is not for a part"),
    ],
)
def test_a_part_without_its_parameters_is_refused(part, words):
    refused(rf"C362\]: .*{words}", optim__parts=part)


def test_keys_of_a_part_have_the_types_of_those_of_optim():
    refused(r"C147\]: optim.parts.a.match = 3", optim__parts={"a": {"match": 3}})
    refused(r"C310\]: optim.parts.a.no_decay", optim__parts={"a": {"match": "D", "no_decay": 3}})
    groups = {"x": {"match": "D.0", "lr": 1.0, "lr_factor": 2.0}}
    refused(
        r"C147\]: .*has a factor on optim.parts.a.lr",
        optim__parts={"a": {"match": "D", "groups": groups}},
    )


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"freeze": {"head": 0}}, r"C312\]: freeze\.head = 0"),
        (
            {"optim__no_decay": "norm"},
            r"C310\]: optim\.no_decay = norm: must be a list of texts, or null \(parameters",
        ),
        ({"optim__layer_decay": 2}, r"C311\]: optim\.layer_decay = 2"),
        ({"optim__scaling": "linear"}, r"C135\]: optim\.reference_batch_size = null"),
        ({"schedule__warmup_epochs": -1}, r"C313\]: schedule\.warmup_epochs = -1"),
        ({"schedule__warmup_epochs": 1, "schedule__warmup_steps": 3}, r"C313.* exclude each other"),
        ({"accumulate": 2}, r"C144\]: accumulate = 2"),
        ({"parallel__virtual_ranks": "many"}, r"C126\]: parallel\.virtual_ranks"),
        ({"parallel__virtual_ranks": 6, "parallel__num_processes": 4}, r"C143\]: .* 4 processes"),
    ],
)
def test_options_that_exclude_or_need_each_other_are_refused(changes, line):
    refused(line, **changes)


def test_gradients_in_sixteen_bits_are_not_sharded():
    with pytest.raises(ConfigError, match="C139"):
        config_of("data.train=x.h5", "parallel=fsdp", "precision=amp", "precision.dtype=fp16")


def test_virtual_ranks_are_dealt_out_to_the_processes_of_a_launcher(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    ranks = {"parallel__num_processes": 2}
    checked(**ranks, parallel__virtual_ranks=4)  # without RANK nothing was launched
    monkeypatch.setenv("RANK", "0")
    checked(**ranks, parallel__virtual_ranks=3)
    refused("C143", **ranks, parallel__virtual_ranks=4)


# ----------------------------------------------------------------------------------- weights


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"init": "x.pt"}, "C101"),
        ({"init__weights": ""}, "C301"),
        ({"init__average": False}, r"C301\]: init\.average = False: no weights are read"),
        ({"init__skip": ["head"]}, r"C301\]: init\.skip = .*no weights are read"),
        ({"init__weights": ".", "init__rename": {"fc": 3}}, r"C301.*init\.rename = .*: is no name"),
        ({"init__weights": "nowhere.pt"}, "K110"),
        ({"resume": "run"}, r"C196\]: resume = run: does not name a run"),
    ],
)
def test_weights_that_are_not_named_are_refused(changes, line):
    refused(line, **changes)


def test_a_resumed_run_needs_no_file_of_weights():
    checked(init__weights="nowhere.pt", resume__run="RUN")


# ------------------------------------------------------------------------------- validation


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90m", 5400), ("2h", 7200), ("1d", 86400), ("1h30m", 5400), ("0.5s", 0.5)],
)
def test_a_time_has_units(text, seconds):
    assert seconds_of("stop.after", text) == seconds


@pytest.mark.parametrize("text", ["", "2", "h", "2x", "0h", "-1h", "1h 30m", "2hours", "1e3s"])
def test_a_time_without_units_is_refused(text):
    refused(r"C337\]: stop\.after = ", stop__after=text)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"stop__metric": "loss"}, r"C336\]: stop\.metric = loss: .*stop\.patience"),
        ({"stop__min_delta": 0.1, "stop__patience": 2}, r"C336\]: stop\.min_delta = 0\.1: .*NAME"),
        ({"stop__min_delta": -1}, r"C336\]: stop\.min_delta = -1: must be a number of at least 0"),
        ({"stop__mode": "min"}, r"C336\]: stop\.mode = min"),
        ({"best__mode": "max"}, r"C336\]: best\.mode = max"),
        ({"metrics": {"a.b": {"_target_": "x.Y"}}}, r"C330\]: metrics\.a\.b"),
    ],
)
def test_a_metric_that_is_not_used_is_refused(changes, line):
    refused(line, data__val="val.h5", **changes)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ("max-autotun", r"C387\]: compile = max-autotun: .*did you mean 'max-autotune'"),
        ({"mood": "default"}, r"C102\]: compile\.mood = default: .*did you mean 'compile\.mode'"),
        ({"mode": "fast"}, r"C387\]: compile\.mode = fast: must be default"),
        ({"dynamic": 1}, r"C387\]: compile\.dynamic = 1: must be true or false"),
        ({}, r"C387\]: compile = \{\}: must have a mode or options"),
        (
            {"mode": "default", "options": {"max_autotune": True}},
            r"C387\]: compile = \{'mode': .*must have a mode or options",
        ),
        ({"options": {"cpp.cxx": "evil"}}, r"C387\]: compile\.options\.cpp\.cxx = evil: .*program"),
    ],
)
def test_what_torch_s_compiler_does_not_take_is_refused(given, line):
    refused(line, compile=given)


def test_the_compiler_s_modes_and_blocks_are_typed_as_they_are():
    assert config_of("compile=max-autotune")["compile"] == "max-autotune"
    block = config_of("compile={mode: max-autotune, dynamic: true}")["compile"]
    assert block == {"mode": "max-autotune", "dynamic": True}


def test_two_ways_to_capture_graphs_exclude_each_other():
    checked(compile="max-autotune-no-cudagraphs", cuda_graph=True)
    refused(r"C387\]: compile = max-autotune: ", compile="max-autotune", cuda_graph=True)


@pytest.mark.parametrize(
    "changes",
    [
        {"metrics": {"f1": {"_target_": "x.Y"}}},
        *({"best__metric": "loss"}, {"stop__patience": 2}, {"checkpoint__keep_best": 2}),
    ],
    ids=["metrics", "best", "patience", "keep_best"],
)
def test_what_looks_at_the_validation_needs_validation_data(changes):
    checked(data__val="val.h5", **changes)
    refused("C335", **changes)


# ---- rules


COUNT = Rule(int, 1)
SHARE = Rule(float | None, 0, below=1)
WHEN = Rule(str, choices=("off", "always"), number=173)


@pytest.mark.parametrize(
    ("rule", "value"),
    [
        *((COUNT, 1), (SHARE, 0), (SHARE, 0.5), (SHARE, None), (WHEN, "off"), (Rule(bool), False)),
        *((Rule(list[str]), []), (Rule(list[int] | None), [2, 3]), (Rule(dict), {})),
    ],
)
def test_a_value_of_the_kind_and_in_the_range_fits(rule, value):
    rule.check("key", value)


@pytest.mark.parametrize(
    ("rule", "value"),
    [
        *((COUNT, 0), (COUNT, True), (COUNT, 1.0), (COUNT, None), (SHARE, 1), (SHARE, -0.1)),
        *((SHARE, float("nan")), (Rule(float), float("inf")), (Rule(float, above=0), 0)),
        *((Rule(int, 0, 9), 10), (Rule(bool), 1), (Rule(list[str]), [1]), (Rule(list[str]), "a")),
    ],
)
def test_every_other_value_is_refused(rule, value):
    with pytest.raises(ConfigError, match=rf"C101\]: key = .*: must be {rule.words}; correct it"):
        rule.check("key", value)


def test_an_error_has_the_number_of_the_rule_and_the_nearest_choice():
    with pytest.raises(ConfigError, match=r"C173\]: when = alway: .*\(did you mean 'always'\?\)"):
        WHEN.check("when", "alway")


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (COUNT, "a whole number of at least 1"),
        (SHARE, "a number of at least 0 and below 1, or null"),
        (Rule(int, 0, 9), "a whole number from 0 to 9"),
        (Rule(float | None, above=0, means="a time"), "a time above 0, or null"),
        (Rule(str | None, choices=("a", "b", "c")), "a, b or c, or null"),
        (Rule(int | str), "a whole number or a text"),
    ],
)
def test_the_words_say_what_a_value_must_be(rule, words):
    assert rule.words == words


@pytest.mark.parametrize(
    ("rule", "text", "value"),
    [
        *((COUNT, "3", 3), (Rule(float), "1e3", 1000.0), (Rule(bool), "True", True)),
        *((Rule(str | None), "", None), (Rule(str | None), "null", None)),
        *((Rule(str | None), "'a b'", "a b"), (WHEN, "off", "off")),
    ],
)
def test_a_word_of_the_command_line_is_read(rule, text, value):
    assert rule.read("key", text) == value


@pytest.mark.parametrize(
    ("rule", "text"),
    [(COUNT, "2.5"), (COUNT, ""), (Rule(float), "nan"), (Rule(float), "soon"), (Rule(bool), "1")],
)
def test_a_word_that_cannot_be_read_is_refused(rule, text):
    with pytest.raises(ConfigError, match=rf"C101\]: key = {text}: must be {rule.words}"):
        rule.read("key", text)


@pytest.mark.parametrize(
    ("rule", "text"), [(COUNT, "32"), (SHARE, "0.5"), (SHARE, "null"), (Rule(bool), "true")]
)
def test_a_value_in_quotes_is_refused_with_advice_to_leave_them_out(rule, text):
    message = str(rule.error("key", text))
    assert f'key = "{text}": must be {rule.words}, and is a text; leave out' in message
    assert message.endswith("""'key="${oc.decode:${oc.env:NAME}}"'""")


@pytest.mark.parametrize(
    "text", ["0", "soon", "9" * 5000, "[" * 100_000], ids=["low", "word", "long", "deep"]
)
def test_a_text_without_a_value_that_fits_is_shown_as_it_is(text):
    assert "is a text" not in str(COUNT.error("key", text))
