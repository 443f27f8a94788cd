"""A typo is answered in one line with the nearest match and exit code 2.

The answer comes before torch is loaded and leaves no trace on disk.
"""

import os
import re

import pytest

from framework.main import COMMANDS
from tests.cli.command import is_one_error_line, paceline, started

TYPOS = [
    (["train", "dta=hdf5"], "C102", "'data'"),
    (["train", "data=hdf"], "C104", "'hdf5'"),
    (["train", "recipes=cifr10"], "C104", "'cifar10'"),
    (["train", "optim.lrr=3"], "C102", "'optim.lr'"),
    (["train", "+model.widht=9"], "C106", "'model.width'"),
    (["train", "+optim.weight_decy=9"], "C106", "'optim.weight_decay'"),
    (["train", "-m", "loader=plain,prefech"], "C104", "'prefetch'"),
    (["train", "+epoch=3"], "C102", "'epochs'"),
    (["train", "+workers.nun=3"], "C102", "'workers.num'"),
    (["train", "--multirn"], "C124", "'--multirun'"),
    (["trian"], "C120", "'train'"),
    (["pack", "input=foldr"], "C104", "'folder'"),
    (["pack", "input=digits", "output.path=x.h5", "+wokers=1"], "C102", "'workers'"),
    (["train", "+model._taret_=x"], "C106", "'model._target_'"),
    (["train", "recipe=digits"], "C102", "'recipes'"),
]


@pytest.mark.parametrize(
    ("words", "number", "nearest"),
    TYPOS,
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_a_typo_is_answered_with_the_nearest_match(words, number, nearest):
    done = paceline(*words)
    assert done.code == 2
    assert is_one_error_line(done, number)
    assert f"did you mean {nearest}" in done.err
    assert not os.listdir("outputs") if os.path.exists("outputs") else True


def test_a_typo_is_answered_before_torch_is_loaded():
    done = started("train", "optim.lrr=3", PYTHONPROFILEIMPORTTIME="1")
    assert done.code == 2
    assert " torch\n" not in done.err  # the list of imports: torch alone takes over a second


WRONG = [
    (["batch_size=abc"], "C101"),
    (["epochs=0"], "C101"),
    (["workers.num=-1"], "C101"),
    (["workers.kind=fibre"], "C107"),
    (["model._target_=os.system"], "C105"),
    (["model._target_=framework.main.os.system"], "C105"),
    (["+model._target_whitelist_=x"], "C106"),
    (["data.train=a=b"], "C100"),
    (["data.train=a,b"], "C100"),
    (["dataset='${nothing}'"], "C104"),
    (["data.train=???"], "C103"),
    (["model.in_channels=3"], "C155"),
    (["model.num_classes=9"], "C154"),
    (["optim.lr=-1"], "C101"),
    (["optim.lr=abc"], "C101"),
    (["optim.lr=nan"], "C101"),
    (["optim.weight_decay=-1"], "C113"),
    (["augment=color_jitter", "augment.hue=nan"], "C101"),
    (["augment=compose", "augment@augment.parts.jitter=color_jitter"], "C102"),
    (["workers.num=100000"], "C101"),
    (["ema_decay=2"], "C101"),
    (["resume="], "C101"),
    (["parallel=ddp", "parallel.timeout_s=0"], "C126"),
    (["parallel=ddp", "parallel.bucket_mb=-1"], "C126"),
    (["device=cuda:77"], "C119"),
    (["precision=amp", "precision.dtype=fp8"], "C110"),
    (["--config-dir", "nowhere"], "C104"),
]


@pytest.mark.parametrize(
    ("word", "answer"),
    [
        (
            "parallel.num_processes=2",
            "the chosen parallel has no such key; choose parallel=ddp or ",
        ),
        (
            "precision.dtype=bf16",
            "the chosen precision has no such key; choose precision=amp, which has it",
        ),
        ("optim.fused=true", "put a + before it: +optim.fused=VALUE"),
        ("optim.amsgrad=true optim=adamw", "torch.optim.AdamW takes it; put a + before it"),
        ("loader.depth=3 loader=plain", "choose loader=prefetch or loader=stream, which have it"),
    ],
)
def test_a_key_that_another_choice_or_the_class_has_is_explained(word, answer):
    done = paceline("train", *word.split())
    assert is_one_error_line(done, "C102")
    assert answer in done.err


@pytest.mark.parametrize(
    ("words", "number"), WRONG, ids=lambda value: value[-1] if isinstance(value, list) else ""
)
def test_a_wrong_value_is_one_line(words, number):
    done = paceline("train", *words)
    assert done.code == 2
    assert is_one_error_line(done, number)


PARTS = ["augment=compose", "+augment@augment.parts.jitter=color_jitter"]
PUT_WRONGLY = [
    (
        [*PARTS, "augment.parts.jitter.hue=0.9"],
        "C113",
        "augment.parts.jitter = .*: hue = 0.9 must be from 0 to 0.5",
    ),
    ([*PARTS, "augment.parts.jitter.hue=abc"], "C101", "augment.parts.jitter.hue = abc"),
    (
        ["augment=compose", "+augment.parts.jitter=color_jitter"],
        "C113",
        r"add \+augment@augment.parts.jitter=CHOICE",
    ),
    (
        ["augment=compose", "+augment@augment.parts.n=normalize", *PARTS[1:]],
        "C113",
        "parts.jitter .* put it before parts.n;",
    ),
    (
        ["augment=mixup", "augment.num_classes=5"],
        "C154",
        r"augment\.num_classes = 5: .* has 10 classes",
    ),
    (["augment=none", "model.in_channels=1"], "C118", "pixels are still bytes: augment=normalize"),
]


@pytest.mark.parametrize(
    ("words", "number", "answer"),
    PUT_WRONGLY,
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_an_augmentation_put_together_wrongly_is_named(words, number, answer):
    done = paceline("train", *words)
    assert done.code == 2
    assert is_one_error_line(done, number)
    assert re.search(answer, done.err)


def test_another_choice_than_the_recipe_s_leaves_out_what_was_for_that(tmp_path):
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "mine.yaml").write_text(
        "# @package _global_\ndefaults:\n  - digits\n  - override /augment: crop_flip\n"
        "augment: {padding: 1}\nmax_steps: 2\n"
    )
    done = paceline(
        "train", "--config-dir", ".", "recipes=mine", "augment=normalize", "hydra.run.dir=run"
    )
    assert done.code == 0, done.err
    assert "dropped augment.padding=1, because of augment=normalize" in done.err
    assert "padding" not in (tmp_path / "run" / "config.yaml").read_text()
    assert paceline("train", "resume=run", "max_steps=4").code == 0


def test_a_configuration_file_cannot_allow_itself_anything(tmp_path):
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "bad.yaml").write_text(
        "# @package _global_\nallow_targets: [os]\nmodel: {_target_: os.getcwd}\n"
    )
    done = paceline("train", "--config-dir", ".", "recipes=bad")
    assert done.code == 2
    assert is_one_error_line(done, "C105")


def test_a_recipe_of_the_users_is_suggested(tmp_path):
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "mine.yaml").write_text("# @package _global_\nepochs: 1\n")
    assert "did you mean 'mine'" in paceline("train", "--config-dir", ".", "recipes=mien").err


def test_help_names_every_choice_with_a_line():
    text = paceline("train", "--help").out
    for name in (
        "hdf5",
        "lmdb",
        "dali",
        "plain",
        "prefetch",
        "stream",
        "none",
        "dp",
        "ddp",
        "fp32",
        "amp",
        "cifar10",
    ):
        assert any(
            line.split()[:1] == [name] and len(line.split()) > 2 for line in text.splitlines()
        ), name
    assert "batch_size" in text


def test_the_configuration_is_printed():
    assert "batch_size: 128" in paceline("train", "--cfg", "job").out


@pytest.mark.parametrize("command", ["train", "bench", "diagnose", "tune"])
def test_choices_are_completed(command):
    line = f"paceline {command} loader="
    done = paceline("-sc", "query=bash", COMP_LINE=line, COMP_POINT=str(len(line)))
    assert {"loader=plain", "loader=prefetch", "loader=stream"} <= set(done.out.split())


def test_commands_are_completed():
    assert set(
        paceline("-sc", "query=bash", COMP_LINE="paceline ", COMP_POINT="9").out.split()
    ) == set(COMMANDS)


def test_torchrun_refuses_a_sweep():
    done = paceline("train", "-m", "epochs=1,2", RANK="0", WORLD_SIZE="1")
    assert done.code == 2
    assert is_one_error_line(done, "C122")


@pytest.mark.parametrize("word", ["+optim.lr=0.1", "~optim.lr=3"])
def test_a_key_that_is_there_is_set_without_a_sign(word):
    done = paceline("train", word)
    assert is_one_error_line(done, "C102")
    assert "leave out the + or ~" in done.err


@pytest.mark.parametrize(
    ("command", "word", "nearest"),
    [
        ("diagnose", "sedonds=3", "seconds"),
        ("tune", "memroy=1G", "memory"),
        ("bench", "repaets=2", "repeats"),
        ("diagnose", "wrokers=2", "workers"),
    ],
)
def test_a_hint_knows_the_keys_of_the_command_too(command, word, nearest):
    done = paceline(command, word)
    assert is_one_error_line(done, "C102"), done.err
    assert f"did you mean '{nearest}'" in done.err
