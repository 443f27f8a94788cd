import os

import pytest

from framework.commands.runs.prune_runs import prune
from framework.errors import ConfigError, ResourceError
from framework.system.lock import locked
from tests.commands.runs.run_folders import make_run


def test_what_is_named_is_deleted_and_nothing_else(tmp_path, capsys):
    paths = [make_run(tmp_path / name) for name in "abc"]
    prune(paths[:2], others=False)
    assert sorted(os.listdir(tmp_path)) == ["c"]
    assert capsys.readouterr().out.startswith(f"deleted {paths[0]}\ndeleted {paths[1]}\n2 runs, ")


def test_before_that_it_can_say_what_it_would_delete(tmp_path, capsys):
    path = make_run(tmp_path / "a")
    prune([path], others=False, only_say=True)
    assert path.exists()
    said = capsys.readouterr().out
    assert said.startswith(f"would delete {path}\nnothing is deleted yet: 1 run")


def test_a_running_run_is_not_deleted_and_no_other_either(tmp_path):
    paths = [make_run(tmp_path / name, code=None) for name in "ab"]
    (paths[0] / "exit.json").write_text('{"code": 6}')
    with (
        locked(paths[1] / "run.lock", lambda owner: None),
        pytest.raises(ResourceError, match=r"R190.*is training there"),
    ):
        prune(paths, others=False)
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


def test_a_run_of_another_host_that_has_just_reported_is_not_deleted(tmp_path):
    path = make_run(tmp_path / "a", code=None)
    (path / "run.lock").write_text("process 1 on elsewhere since 2026-11-25 03:00:00\n")
    with pytest.raises(ResourceError, match=r"R190.*on elsewhere"):
        prune([path], others=False)


def test_what_is_no_run_directory_is_not_deleted(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    os.mkdir(tmp_path / "odd")
    os.symlink("/etc/hostname", tmp_path / "odd" / "run.json")
    for name in ("folder", "file", "none", "odd"):
        with pytest.raises(ConfigError, match="C375"):
            prune([tmp_path / name], others=True)


def test_nothing_is_deleted_through_a_link(tmp_path):
    path = make_run(tmp_path / "real" / "run")
    os.symlink(path, tmp_path / "link")
    os.symlink(tmp_path / "real", tmp_path / "folder")
    for name in ("link", "folder/run"):
        with pytest.raises(ConfigError, match=f"C376.*{path}"):
            prune([tmp_path / name], others=True)


def test_links_inside_a_run_are_deleted_and_not_what_they_lead_to(tmp_path):
    path = make_run(tmp_path / "run")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.h5").touch()
    os.symlink(tmp_path / "data", path / "data")
    os.symlink(tmp_path / "data" / "train.h5", path / "checkpoints" / "train.h5")
    prune([path], others=True)
    assert os.listdir(tmp_path) == ["data"]
    assert os.listdir(tmp_path / "data") == ["train.h5"]


@pytest.mark.parametrize(
    "name",
    [
        *("thesis.tex", ".git/config", "run2/run.json", "checkpoints/by_hand.pt", "worst_of_all/a"),
        *(
            "predictions.csv",
            "evaluation_of_reviewers.docx",
            "evaluation/notes.txt",
            "config_my.yaml",
        ),
    ],
)
def test_files_of_the_user_in_a_run_directory_are_kept_unless_said(tmp_path, name):
    path = make_run(tmp_path / "run")
    (path / name).parent.mkdir(exist_ok=True)
    (path / name).touch()
    shown = name if name.startswith("checkpoints") else name.split("/")[0]
    with pytest.raises(ConfigError, match=rf"C378.*: {shown}; move it away"):
        prune([path], others=False)
    prune([path], others=True)
    assert not path.exists()


def test_the_directory_that_one_is_in_is_not_deleted(tmp_path, monkeypatch):
    path = make_run(tmp_path / "run")
    monkeypatch.chdir(path / "checkpoints")
    with pytest.raises(ConfigError, match="C377"):
        prune([path], others=False)


def test_what_a_killed_prune_has_left_is_deleted_by_the_next(tmp_path):
    import socket

    path = make_run(tmp_path / "run")
    make_run(tmp_path / f"run.tmp.{socket.gethostname()}.999999999.abcd")
    prune([path], others=False)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "names",
    [
        ["replay/step_3/replay.json", "pictures/a.png"],
        ["evaluation/evaluation.json", "evaluation/confusion.clean.png", "evaluation/worst.html"],
        ["evaluation.json", "confusion.png", "report.html", "report-loss-over-steps.png"],
        [
            "config.1.yaml",
            "resolved.12.json",
            "checkpoints/step-00000012.pt",
            "checkpoints/best.pt",
        ],
        ["checkpoints/best.pt.tmp.host.12.0a1b2c3d", "summary.json.tmp.my.host.7.ffffffff"],
    ],
)
def test_what_commands_write_into_a_run_is_no_others_file(tmp_path, names):
    path = make_run(tmp_path / "a")
    for name in names:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text("{}")
    prune([path], others=False)
    assert not path.exists()
