import pytest

from framework.config.prepare_data import PrepareWords
from framework.errors import ConfigError, DataError

FOLDER = {"_target_": "framework.input.folder.FolderInput", "path": "photos"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("correct input.label_pattern", "correct prepare.val.input.label_pattern"),
        ("'input.labels=[a]', say", "'++prepare.val.input.labels=[a]', say"),
        ("set pack.size=[8,8]", "set ++prepare.val.pack.size=[8,8]"),
        ("choose output=hdf5 or another output.path", "choose data=hdf5 or another dataset"),
        ("prepare.val.input.path = x", "prepare.val.input.path = x"),
        ("pack.h5 and input.csv", "pack.h5 and input.csv"),
        ("/a/pack.size: record 3", "/a/pack.size: record 3"),
        ("paceline pack input.path=x", "paceline pack input.path=x"),
    ],
)
def test_keys_of_pack_become_those_of_train(text, said):
    assert PrepareWords("val", FOLDER)(text) == said


def test_an_error_stays_but_for_the_keys():
    cause = ValueError("why")
    with pytest.raises(DataError) as caught, PrepareWords("train", FOLDER).in_errors():
        raise DataError(171, "a.png", "is no map", "correct input.labels") from cause
    assert str(caught.value).endswith("a.png: is no map; correct prepare.train.input.labels")
    assert caught.value.__cause__ is cause


def test_an_input_of_ones_own_is_known_by_its_keys():
    words = PrepareWords("train", {"_target_": "no.such.Input", "folder": 1})
    with pytest.raises(ConfigError, match=r"prepare.train.input.folder = 1"), words.in_errors():
        raise ConfigError(101, "input.folder = 1", "is wrong", "correct it")
