from pathlib import Path

import pytest
from hydra.core.object_type import ObjectType
from omegaconf import OmegaConf

from framework.cli.config_source import MOST_ENTRIES, CheckedFolder, checked_places
from framework.cli.hydra_session import hydra_session
from framework.errors import ConfigError


@pytest.fixture
def source():
    Path("mine/recipes").mkdir(parents=True)
    Path("mine/recipes/a.yaml").write_text("# @package _global_\nepochs: 3\n")
    return CheckedFolder("a test", f"paceline://{Path('mine').absolute()}")


def test_a_file_is_read_with_its_header(source):
    result = source.load_config("recipes/a")
    assert result.config == {"epochs": 3}
    assert result.header["package"] == "_global_"


def test_groups_and_files_are_listed(source):
    assert source.available()
    assert source.is_group("recipes")
    assert source.is_config("recipes/a")
    assert not source.is_config("recipes")
    assert source.list("", ObjectType.GROUP) == ["recipes"]
    assert source.list("recipes", ObjectType.CONFIG) == ["a"]


def test_a_name_outside_the_folder_is_refused(source):
    Path("secret.yaml").write_text("a: 1\n")
    with pytest.raises(ConfigError, match="C117"):
        source.load_config("../secret")


@pytest.mark.parametrize(
    ("place", "checked"),
    [
        ("file:///a", "paceline:///a"),
        ("/a", "paceline:///a"),
        ("pkg://hydra.conf", "pkg://hydra.conf"),
        ("pkg://hydra_plugins/mine.conf", "pkg://hydra_plugins/mine.conf"),
        ("structured://", "structured://"),
    ],
)
def test_folders_are_checked_and_packages_of_configurations_are_not(place, checked):
    assert checked_places([place]) == [checked]


def test_a_files_own_search_path_is_checked_too(source):
    text = "hydra: {searchpath: ['file:///there', /here]}\n"
    Path("mine/primary.yaml").write_text(text)
    config = source.load_config("primary").config
    assert OmegaConf.select(config, "hydra.searchpath") == ["paceline:///there", "paceline:///here"]


def test_hydra_reads_a_files_defaults_each_time_it_follows_the_file():
    """The limit of C117 depends on this, which is Hydra's own business."""
    Path("mine/recipes").mkdir(parents=True)
    entries = "".join(f"  - leaf@p{number}\n" for number in range(MOST_ENTRIES + 1))
    Path("mine/recipes/many.yaml").write_text(f"# @package _global_\ndefaults:\n{entries}")
    Path("mine/recipes/leaf.yaml").write_text("a: 1\n")
    with hydra_session("train", "mine") as hydra, pytest.raises(ConfigError, match="C117"):
        hydra.compose_config("train", ["recipes=many"], run_mode=None)
