from pathlib import Path

import pytest

from framework.cli.arguments import quoted
from framework.commands.train.resume_words import resumed
from framework.errors import CheckpointError, ConfigError
from framework.system.run_dir import write_object
from tests.saved_runs import write_signed


def run_with(*overrides, **facts):
    Path("RUN").mkdir()
    write_object(Path("RUN/run.json"), {"overrides": list(overrides), **facts})


def test_a_run_s_own_words_come_first():
    run_with("data=lmdb", "epochs=2")
    words = resumed(["resume=RUN", "epochs=3"])
    assert [word.split("=")[0] for word in words[1:3]] == ["hydra.run.dir", "resume.run"]
    assert words[3:] == ["data=lmdb", "epochs=3"]


def test_the_job_of_a_sweep_continues_as_a_single_run_unless_a_sweep_is_typed():
    run_with("recipes=sweep_workers")
    assert resumed(["resume=RUN", "hydra.mode=MULTIRUN"])[0] == "hydra.mode=RUN"
    assert resumed(["resume=RUN", "hydra.mode=MULTIRUN"])[-1] == "hydra.mode=MULTIRUN"


def test_another_choice_drops_the_words_about_the_old_one():
    run_with("optim=adam", "optim.lr=0.1")
    assert not any("lr" in word for word in resumed(["resume=RUN", "optim=sgd"]))


def test_another_reader_keeps_the_data_that_the_run_names():
    words = ["data.train=own.h5", "data.val.clean=val.h5", "data.val_transform=opencv"]
    run_with(*words, "data.stage=ram")
    assert resumed(["resume=RUN", "data=lmdb"])[3:] == [*words[:2], "data=lmdb"]


def test_paths_of_data_are_those_of_the_folder_of_the_run(tmp_path):
    words = ["data.train=t.h5", "+data.val.a=t.h5", "dataset=gone", "data.val_transform=flip"]
    (tmp_path / "there").mkdir()
    for name in ("t.h5", "flip"):
        (tmp_path / "there" / name).touch()
    run_with(*words, folder=str(tmp_path / "there"))
    path = quoted(str(tmp_path / "there/t.h5"))
    assert resumed(["resume=RUN"])[3:] == [f"data.train={path}", f"+data.val.a={path}", *words[2:]]


def test_the_folder_of_configurations_counts_again():
    run_with(config_dir="/somewhere")
    assert resumed(["resume=RUN"])[:2] == ["--config-dir", "/somewhere"]
    assert resumed(["resume=RUN", "--config-dir", "mine"]).count("--config-dir") == 1


def test_auto_begins_if_there_is_no_run():
    words = ["hydra.run.dir=RUN", "epochs=2"]
    assert resumed([*words, "resume=auto"]) == words


def test_auto_finds_the_run_of_a_directory_with_references():
    run_with("seed=4", "max_steps=1")
    Path("RUN").rename("RUN-4")
    words = resumed(["seed=4", "hydra.run.dir=RUN-${seed}", "resume=auto"])
    assert f'resume.run="{Path("RUN-4").absolute()}"' in words
    assert not any("${" in word for word in words)


@pytest.mark.parametrize(
    "words",
    [["hydra.run.dir=r/${stamp:}"], ["hydra.run.dir=r/${seed}", "-m"]],
    ids=["a directory of the start", "a sweep"],
)
def test_auto_refuses_a_directory_that_differs_each_time(words):
    with pytest.raises(ConfigError, match="C127"):
        resumed([*words, "resume=auto"])


@pytest.mark.parametrize("text", ["", "[]", '{"overrides": [1]}', '{"overrides": 7}'])
def test_a_directory_without_a_run_is_refused(text):
    Path("RUN").mkdir()
    write_signed(Path("RUN/run.json"), text)
    with pytest.raises(CheckpointError, match="K101"):
        resumed(["resume=RUN"])


@pytest.mark.parametrize("word", ["hydra.run.dir=/", "-m", "hydra/launcher=evil", "bare"])
def test_a_run_json_may_not_say_how_a_run_is_started(word):
    run_with(word)
    with pytest.raises(ConfigError, match="C12"):
        resumed(["resume=RUN"])
