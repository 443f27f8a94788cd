import os
import re
import stat

import pytest

from framework.errors import CheckpointError
from framework.system import run_dir as module


def test_the_newest_configuration_is_that_of_the_last_resume(tmp_path):
    for name in ("resolved.json", "resolved.2.json", "resolved.10.json", "config.yaml"):
        (tmp_path / name).write_text("{}")
    assert module.newest_config(tmp_path).name == "resolved.10.json"
    assert "config.yaml" in module.configurations(tmp_path)


def test_links_pipes_and_folders_of_a_run_are_not_read(tmp_path):
    module.write_object(tmp_path / "outside", {"a": 1})
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    os.symlink(tmp_path / "outside", run_dir / "run.json")
    os.mkfifo(run_dir / "summary.json")
    (run_dir / "exit.json").mkdir()
    assert not module.is_run(run_dir)
    for name in ("run.json", "summary.json", "exit.json", "missing"):
        assert module.read_object(run_dir / name) == {}
        with pytest.raises(OSError, match=name):
            module.open_file(run_dir / name)
    (run_dir / "metrics.jsonl").write_text("")
    assert module.is_run(run_dir)


@pytest.mark.parametrize(
    "text", ["", "{", "[1, 2]", '"a"', "[" * 100_000, '{"a": ' + "9" * 5000 + "}", "\x00\xff"]
)
def test_a_file_that_holds_no_object_is_empty(tmp_path, text):
    path = tmp_path / "run.json"
    path.write_bytes(text.encode("latin-1"))
    assert module.read_object(path) == {}


def test_a_file_larger_than_a_run_writes_is_not_read(tmp_path, monkeypatch):
    module.write_object(tmp_path / "run.json", {"a": 1})
    assert module.read_object(tmp_path / "run.json") == {"a": 1}
    monkeypatch.setattr("framework.system.run_dir.MOST_BYTES", 3)
    with pytest.raises(ValueError, match="more than"):
        module.read_json(tmp_path / "run.json")


SIGNED = ["run.json", "run.next.json", "summary.json", "exit.json", "resolved.json"]


@pytest.mark.parametrize("name", [*SIGNED, "resolved.12.json"])
def test_another_digit_in_a_signed_file_is_noticed(tmp_path, name):
    path = tmp_path / name
    module.write_object(path, {"val": {"accuracy": 0.13}})
    assert module.read_json(path) == {"val": {"accuracy": 0.13}}
    path.write_text(path.read_text().replace("0.13", "0.93"))
    assert module.read_object(path) == {}
    with pytest.raises(ValueError, match=f"{name} was changed by hand or is damaged"):
        module.read_json(path)


def test_a_file_without_a_digest_is_not_as_a_run_wrote_it(tmp_path):
    (tmp_path / "run.json").write_text('{"a": 1}')
    with pytest.raises(ValueError, match="no digest"):
        module.read_json(tmp_path / "run.json")
    (tmp_path / "other.json").write_text('{"a": 1}')
    assert module.read_json(tmp_path / "other.json") == {"a": 1}


def test_values_of_the_environment_are_written_only_on_request(tmp_path, monkeypatch):
    monkeypatch.setattr("framework.system.run_dir._names", {"TOKEN"})
    monkeypatch.setenv("TOKEN", "hunter2")
    module.write_object(tmp_path / "run.json", {"a": ["x hunter2"]})
    assert module.read_json(tmp_path / "run.json") == {"a": ["x ${oc.env:TOKEN}"]}
    module.write_object(tmp_path / "run.json", {"a": ["x hunter2"]}, redact=False)
    assert module.read_json(tmp_path / "run.json") == {"a": ["x hunter2"]}


@pytest.fixture
def run_dir(tmp_path):
    """Return the directory of a run beside a file and a folder that do not belong to it."""
    (tmp_path / "outside" / "inner").mkdir(parents=True)
    (tmp_path / "outside" / "file").write_text("kept")
    for name in ("checkpoints", "wandb"):
        (tmp_path / "run" / name).mkdir(parents=True)
    (tmp_path / "run" / "metrics.jsonl").write_text("")
    return tmp_path / "run"


STRANGE = {
    "a link to a file": lambda path: path.symlink_to("../../outside/file"),
    "a link to a folder": lambda path: path.symlink_to("../../outside"),
    "a link inside the run": lambda path: path.symlink_to("../metrics.jsonl"),
    "a dangling link": lambda path: path.symlink_to("nowhere"),
    "a loop": lambda path: path.symlink_to(path),
    "a pipe": os.mkfifo,
    "a socket": lambda path: os.mknod(path, stat.S_IFSOCK | 0o600),
}


@pytest.mark.parametrize("name", ["x", "checkpoints/x"])
@pytest.mark.parametrize("plant", STRANGE.values(), ids=STRANGE)
def test_what_leads_out_of_a_run_is_refused_by_its_name(run_dir, plant, name):
    module.check_entry(run_dir)
    plant(run_dir / name)
    with pytest.raises(CheckpointError, match=f"K126.*{re.escape(str(run_dir / name))}"):
        module.check_entry(run_dir)


def test_a_file_with_a_second_name_becomes_one_of_its_own_where_a_run_writes(run_dir):
    outside = run_dir.parent / "outside" / "file"
    os.link(outside, run_dir / "train.csv")
    module.check_entry(run_dir)
    assert os.stat(outside).st_nlink == 2
    module.own_files(run_dir)
    assert os.stat(outside).st_nlink == 1
    assert (run_dir / "train.csv").read_bytes() == outside.read_bytes()


def test_what_a_run_does_not_use_does_not_matter_where_none_has_begun(tmp_path):
    (tmp_path / "x").symlink_to("/")
    module.check_entry(tmp_path)
    (tmp_path / "checkpoints").symlink_to("/")
    with pytest.raises(CheckpointError, match=r"K126.*checkpoints: is a link"):
        module.check_entry(tmp_path)


def test_a_link_of_weights_and_biases_may_lead_within_the_run(run_dir):
    (run_dir / "wandb" / "run-1").mkdir()
    (run_dir / "wandb" / "latest-run").symlink_to("run-1")
    (run_dir / "wandb" / "run-1" / "x").symlink_to("/nowhere")  # which nobody follows
    module.check_entry(run_dir)
    (run_dir / "wandb" / "debug.log").symlink_to("../../outside/file")
    with pytest.raises(CheckpointError, match=r"K126.*debug\.log: is a link to"):
        module.check_entry(run_dir)


def test_the_directory_itself_may_be_a_link_and_need_not_exist(run_dir):
    link = run_dir.with_name("link")
    link.symlink_to(run_dir)
    module.check_entry(link)
    (run_dir / "wandb" / "latest-run").symlink_to("../checkpoints")
    module.check_entry(link)
    module.check_entry(run_dir / "missing")
    (run_dir / "x").symlink_to("nowhere")
    with pytest.raises(CheckpointError, match="K126"):
        module.check_entry(link)


@pytest.fixture
def environment(monkeypatch):
    """Note variables that other tests do not know."""
    monkeypatch.setattr("framework.system.run_dir._names", set())
    values = {"TOKEN": "hunter2", "LONGER": "hunter2-of-mine", "SHORT": "no"}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    module.note(["TOKEN", "LONGER", "SHORT", "GONE"])


def test_values_are_replaced_at_every_depth_and_keys_stay(environment):
    value = {"hunter2": ["hunter2", {"a": ("x=hunter2&y", 3, None, True)}], "b": 1.5}
    written = {
        "hunter2": ["${oc.env:TOKEN}", {"a": ["x=${oc.env:TOKEN}&y", 3, None, True]}],
        "b": 1.5,
    }
    assert module.redacted(value) == written


def test_short_values_and_variables_that_nobody_read_stay(environment, monkeypatch):
    monkeypatch.setenv("UNREAD", "something else")
    assert module.redacted("no, something else") == "no, something else"
    monkeypatch.setenv("SHORT", "four")
    assert module.redacted("no, four") == "no, ${oc.env:SHORT}"


def test_a_value_is_found_as_messages_show_it(environment, monkeypatch):
    monkeypatch.setenv("TOKEN", "it's\n  long")
    for text in ("it's\n  long", "it's\\n  long", "it's long"):
        assert module.redacted(f"say {text}, twice: {text}").count("${oc.env:TOKEN}") == 2


def test_restored_gives_back_what_redacted_took(environment):
    text = "user:hunter2@host/hunter2-of-mine?no"
    assert module.restored(module.redacted(text)) == text
    assert module.redacted("hunter2-of-mine hunter2") == "${oc.env:LONGER} ${oc.env:TOKEN}"
    assert module.restored("x ${oc.env:GONE}, ${oc.env: TOKEN}") == "x ${oc.env:GONE}, hunter2"


def test_what_is_shown_is_one_line_of_letters_and_not_endless():
    assert module.shown("a\n\tb\x1b[31m\x00\udcff") == "a b\\x1b[31m\\x00\\udcff"
    assert module.shown({"a": [1]}) == '{"a": [1]}'
    assert len(module.shown("x" * 10_000)) == module.LONGEST
