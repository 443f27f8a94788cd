import os

import pytest

from framework.sink.config_files import configurations, inside, newest_config, read_config


def test_the_newest_configuration_is_that_of_the_last_resume(tmp_path):
    for name in ("resolved.json", "resolved.2.json", "resolved.10.json", "config.yaml"):
        (tmp_path / name).write_text("{}")
    assert newest_config(tmp_path).name == "resolved.10.json"
    assert "config.yaml" in configurations(tmp_path)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ('{"a": {"b": 1, "c": [1, "x"]}, "d": null}', {"a.b": "1", "a.c": '[1, "x"]', "d": "null"}),
        ("{", {}),
        ("[" * 100_000, {}),
    ],
)
def test_a_configuration_is_read_by_dotted_names(tmp_path, text, values):
    (tmp_path / "resolved.json").write_text(text)
    assert read_config(tmp_path / "resolved.json") == values


def test_only_files_of_the_run_directory_are_sent(tmp_path):
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "a.pt").write_text("weights")
    (tmp_path / "secret").write_text("key")
    os.symlink(tmp_path / "secret", run_dir / "link")
    assert inside(run_dir, "a.pt") == run_dir / "a.pt"
    for name in ("../secret", str(tmp_path / "secret"), "link", "missing", ".", "a\0b", 7):
        assert inside(run_dir, name) is None
