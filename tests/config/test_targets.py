import re

import pytest

from framework.cli.paths import CONF
from framework.config.build import build
from framework.config.targets import (
    as_prefixes,
    check_name,
    check_targets,
    did_you_mean,
    is_allowed,
    targets,
    val_sets,
    with_functions,
)
from framework.errors import ConfigError

LOADER = {"_target_": "framework.loader.prefetch.PrefetchLoader", "depth": 4, "pin_memory": False}


def test_blocks_are_found_in_dictionaries_and_lists_with_their_places():
    config = {
        "a": {"_target_": "x", "inner": {"_target_": "y"}},
        "b": [{"_target_": "z"}, 3],
        "c": None,
    }
    assert [(where, block["_target_"]) for where, block in targets(config)] == [
        ("a", "x"),
        ("a.inner", "y"),
        ("b.0", "z"),
    ]


def test_a_mistyped_argument_is_answered_with_the_nearest():
    with pytest.raises(ConfigError, match=r"C106.*loader\.dept = 4.*did you mean 'loader\.depth'"):
        check_targets({"loader": {"_target_": LOADER["_target_"], "dept": 4}}, ())


def test_a_mistyped_argument_of_torchs_own_is_answered():
    with pytest.raises(
        ConfigError, match=r"C106.*weight_decai.*did you mean 'optim\.weight_decay'"
    ):
        check_targets({"optim": {"_target_": "torch.optim.AdamW", "weight_decai": 0.1}}, ())


@pytest.mark.parametrize("key", ["_x_", "_traget_", "_partail_"])
def test_a_special_key_that_hydra_does_not_know_is_refused(key):
    with pytest.raises(ConfigError, match=rf"C106.*loader\.{key}"):
        check_targets({"loader": {**LOADER, key: 1}}, ())


@pytest.mark.parametrize(
    "target",
    [
        "os.system",
        "subprocess.run",
        "builtins.eval",
        "torch.load",
        "frameworks.x",
        "torch.nnx.y",
        3,
        None,
    ],
)
def test_what_is_not_on_the_list_is_refused(target):
    with pytest.raises(ConfigError, match=r"C105.*model\._target_.*allow_targets"):
        check_targets({"model": {"_target_": target}}, ())


def test_a_target_inside_a_target_is_checked_too():
    with pytest.raises(ConfigError, match=r"C105.*model\.layers\.0"):
        check_targets(
            {"model": {"_target_": "torch.nn.Sequential", "layers": [{"_target_": "os.system"}]}},
            (),
        )


@pytest.mark.parametrize(
    "target",
    [
        "framework.system.durable.os.system",
        "framework.main.os.system",
        "framework.system.durable.os.remove",
        "framework.train.checkpoint.torch.load",
        "framework.config.build.importlib.import_module",
        "framework.system.durable.Path",
        "torch.nn.modules.module.functools.partial",
    ],
)
def test_a_forbidden_thing_under_an_allowed_name_is_refused(target):
    with pytest.raises(ConfigError, match="C105"):
        build("model", {"_target_": target}, ())


def test_every_choice_is_on_the_list():
    named = {
        name
        for path in CONF.glob("*/*.yaml")
        for name in re.findall(r"_target_: *(framework\.[\w.]+)", path.read_text())
    }
    assert len(named) > 50
    assert all(is_allowed(name, ()) for name in named)


@pytest.mark.parametrize(
    "target",
    [
        "framework.parallel.launch.start_ranks.launch",
        "framework.main.run",
        "framework.system.durable.write_text",
        "framework.pack.engine.pack_store.pack",
    ],
)
def test_a_function_of_ours_is_not_on_the_list(target):
    with pytest.raises(ConfigError, match=r"C105.*not on the list"):
        check_name("model", target, ())


@pytest.mark.parametrize(
    "target",
    [
        "framework.loader.plain.PlainLoadre",
        "framework.lodaer.plain.PlainLoader",
        "framework.loader",
    ],
)
def test_a_name_that_does_not_exist_or_cannot_be_called_is_refused(target):
    with pytest.raises(ConfigError, match="C105"):
        build("loader", {"_target_": target}, ())


def test_a_package_the_user_allows_passes():
    check_name("model", "mypkg.Net", as_prefixes(["mypkg"]))
    with pytest.raises(ConfigError, match="C105"):
        check_name("model", "mypkg2.Net", as_prefixes(["mypkg"]))


def test_the_nearest_word_is_offered_only_if_it_is_near():
    assert did_you_mean("epohcs", ["epochs", "seed"]) == " (did you mean 'epochs'?)"
    assert did_you_mean("num", ["num", "kind"], "workers") == " (did you mean 'workers.num'?)"
    assert did_you_mean("zzz", ["epochs", "seed"]) == ""


OF_OBJECTS = {"_target_": "framework.data.dataset.dataset_source", "collate": "mine.padded"}


def test_a_named_collate_becomes_a_block_that_is_checked():
    config = {"data": {"train": {}, "source": OF_OBJECTS}}
    made = with_functions(config)["data"]["source"]["collate"]
    assert made == {"_target_": "mine.padded", "_partial_": True}
    assert config["data"]["source"]["collate"] == "mine.padded"


HDF5 = {"source": {"_target_": "framework.data.hdf5.hdf5_source"}}
MIXTURE = {"source": {"_target_": "framework.data.mixture.mixture_source", "weights": None}}
CLIPS = {"_target_": "mine.Clips"}


@pytest.mark.parametrize(
    ("data", "val", "names"),
    [
        (HDF5, None, []),
        (HDF5, "a.h5", [""]),
        (HDF5, {"a": "a.h5", "b": "b.h5"}, ["a", "b"]),
        (HDF5, {"a": "a.h5"}, ["a"]),
        (HDF5, CLIPS, [""]),
        (HDF5, {"a": CLIPS, "b": CLIPS}, ["a", "b"]),
        (MIXTURE, "a.h5", [""]),
        (MIXTURE, {"web": "a.h5", "books": "b.h5"}, [""]),
        (MIXTURE, {"a": {"web": "a.h5"}, "b": {"web": "b.h5", "books": "c.h5"}}, ["a", "b"]),
    ],
)
def test_a_mapping_names_validation_sets_except_the_stores_of_a_mixture(data, val, names):
    assert list(val_sets({**data, "val": val})) == names
