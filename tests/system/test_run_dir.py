import os

import pytest

from framework.system.run_dir import (
    configurations,
    is_run,
    newest_config,
    open_file,
    read_json,
    read_object,
)


def test_the_newest_configuration_is_that_of_the_last_resume(tmp_path):
    for name in ("resolved.json", "resolved.2.json", "resolved.10.json", "config.yaml"):
        (tmp_path / name).write_text("{}")
    assert newest_config(tmp_path).name == "resolved.10.json"
    assert "config.yaml" in configurations(tmp_path)


def test_links_pipes_and_folders_of_a_run_are_not_read(tmp_path):
    (tmp_path / "outside").write_text('{"a": 1}')
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    os.symlink(tmp_path / "outside", run_dir / "run.json")
    os.mkfifo(run_dir / "summary.json")
    (run_dir / "exit.json").mkdir()
    assert not is_run(run_dir)
    for name in ("run.json", "summary.json", "exit.json", "missing"):
        assert read_object(run_dir / name) == {}
        with pytest.raises(OSError, match=name):
            open_file(run_dir / name)
    (run_dir / "metrics.jsonl").write_text("")
    assert is_run(run_dir)


@pytest.mark.parametrize(
    "text", ["", "{", "[1, 2]", '"a"', "[" * 100_000, '{"a": ' + "9" * 5000 + "}", "\x00\xff"]
)
def test_a_file_that_holds_no_object_is_empty(tmp_path, text):
    path = tmp_path / "run.json"
    path.write_bytes(text.encode("latin-1"))
    assert read_object(path) == {}


def test_a_file_larger_than_a_run_writes_is_not_read(tmp_path, monkeypatch):
    (tmp_path / "run.json").write_text('{"a": 1}')
    assert read_object(tmp_path / "run.json") == {"a": 1}
    monkeypatch.setattr("framework.system.run_dir.MOST_BYTES", 3)
    with pytest.raises(ValueError, match="more than"):
        read_json(tmp_path / "run.json")
