from importlib import import_module

from framework.cli.paths import CONF, ROOT, SUFFIXES


def test_the_folders_hold_the_configurations_and_the_recipes():
    assert (CONF / "train.yaml").is_file()
    assert list((ROOT / "recipes").glob("*.yaml"))


def test_every_suffix_belongs_to_a_writer():
    for target in SUFFIXES:
        module, _, name = target.rpartition(".")
        assert isinstance(getattr(import_module(module), name), type)
