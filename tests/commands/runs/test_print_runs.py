import json

from framework.commands.runs.print_runs import print_json, print_runs
from framework.commands.runs.run_listing import listed_runs
from tests.commands.runs.run_folders import make_run


def printed(capsys, folder):
    print_runs(listed_runs(folder), folder)
    return capsys.readouterr().out


def test_only_choices_that_differ_are_shown(tmp_path, capsys):
    make_run(tmp_path / "a", overrides=["seed=1", "epochs=3"])
    make_run(tmp_path / "b", overrides=["seed=2", "epochs=3"], code=6)
    text = printed(capsys, tmp_path)
    assert "seed" in text
    assert "epochs" not in text
    assert "failed (6)" in text
    assert "b: failed: why" in text


def test_names_and_statuses_are_whole_beside_long_choices(tmp_path, capsys):
    name = "2026-11-27/23-42-01.123456-1234{}"
    for number in range(2):
        words = [f"key{key}={'x' * 40}{number}" for key in range(6)]
        make_run(tmp_path / name.format(number), overrides=words, code=6)
    text = printed(capsys, tmp_path)
    assert all(name.format(number) in text for number in range(2))
    assert text.count("failed (6)") == 2
    assert "…" not in text


def test_json_has_everything_and_no_nan(tmp_path, capsys):
    make_run(tmp_path / "a", metrics={"loss": float("nan")}, overrides=["seed=1"])
    print_json(listed_runs(tmp_path))
    (run,) = json.loads(capsys.readouterr().out)
    assert (run["status"], run["best"], run["choices"]) == (
        "finished",
        {"loss": None},
        {"seed": "1"},
    )
