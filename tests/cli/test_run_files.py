"""The directory of a run: who may have it, what its files hold, and how a run ended."""

import errno
import os
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

import framework.commands.train.train
from framework.cli.hydra_session import as_written
from framework.cli.outcome import RunOutcome, conclude, discard_if_empty, outcome_of
from framework.commands.train.train import claim, in_use
from framework.config.schema import AFTER_STEP
from framework.errors import CheckpointError, ConfigError, DataError, ResourceError, UserCodeError
from framework.system import rng, run_dir
from framework.train.checkpoint import save_state
from tests.cli.command import is_one_error_line, paceline
from tests.run_folders import make_run

CONFIG = {"epochs": 1, "resume": {"run": None}, "vars": {}, "tags": []}


def take(resumed=None, in_sweep=False):
    """Claim the directory ``run``."""
    Path("run").mkdir(exist_ok=True)
    plain = {**CONFIG, "resume": {"run": resumed}}
    claim(Path("run"), OmegaConf.create(plain), ["epochs=1"], None, in_sweep)


def failed(**ending):
    """Claim the directory, and write ``ending`` as the end of its run."""
    take()
    ending = {"code": 3, "reason": "error", "step": None, "checkpoint": None} | ending
    run_dir.write_object(Path("run/exit.json"), ending)


# ---------------------------------------------------------------------------------- the directory


def test_a_claimed_directory_holds_what_the_run_was_started_with():
    take()
    assert run_dir.read_json(Path("run/resolved.json")) == CONFIG
    assert run_dir.read_json(Path("run/run.json"))["overrides"] == ["epochs=1"]
    assert Path("run/config.yaml").is_file()


def test_a_directory_holds_one_run():
    take()
    with pytest.raises(ConfigError, match=r"C121.*resume=auto"):
        take()
    with pytest.raises(ConfigError, match=r"C121.*hydra\.sweep\.dir") as caught:
        take(in_sweep=True)
    assert "resume=auto" not in str(caught.value)


def test_files_of_another_program_are_not_replaced():
    Path("run").mkdir(exist_ok=True)
    Path("run/config.yaml").write_text("theirs")
    with pytest.raises(ConfigError, match="C121"):
        take()
    assert Path("run/config.yaml").read_text() == "theirs"


def test_a_directory_of_a_run_that_failed_before_its_first_step_is_free_again():
    failed()
    Path("run/debug.log").touch()
    with in_use(Path("run")):
        take()
        assert Path("run/run.lock").exists()
    names = sorted(path.name for path in Path("run").iterdir())
    assert names == ["config.yaml", "resolved.json", "run.json"]


@pytest.mark.parametrize(
    ("ending", "name"),
    [
        *(({"code": 0}, None), ({"step": 3}, None), ({"checkpoint": "step-3.pt"}, None)),
        *(({}, "metrics.jsonl"), ({}, "notes.txt")),
    ],
    ids=["finished", "stepped", "saved", "results", "file of the user"],
)
def test_a_directory_of_a_run_that_left_something_is_not_free(ending, name):
    failed(**ending)
    if name:
        Path("run", name).touch()
    with pytest.raises(ConfigError, match="C121"):
        take()
    assert name is None or Path("run", name).exists()


def test_a_resumed_run_keeps_the_files_of_its_start():
    take()
    before = Path("run/run.json").read_text()
    take(resumed="run")
    assert Path("run/run.json").read_text() == before
    assert Path("run/config.1.yaml").is_file()
    assert Path("run/resolved.1.json").is_file()


ENTERED = [
    *("train resume=run", "train hydra.run.dir=run resume=auto", "train hydra.run.dir=run"),
    *("evaluate run", "predict run input=folder input.path=photos output=x.csv"),
    *("export run to=onnx output.path=x", "replay run step=3", "report run", "runs send run"),
]


@pytest.mark.parametrize("command", ENTERED)
def test_every_command_that_enters_a_run_refuses_a_link_in_it(command):
    Path("outside").write_text("kept")
    log = make_run(Path("run")) / "metrics.jsonl"
    log.unlink()
    log.symlink_to("../outside")
    done = paceline(*command.split())
    assert is_one_error_line(done, "K126")
    assert "run/metrics.jsonl: is a link to ../outside" in done.last_line
    assert Path("outside").read_text() == "kept"


def test_one_process_trains_in_a_directory_and_another_waits_and_says_so_once(monkeypatch, capsys):
    monkeypatch.setattr(framework.commands.train.train, "PATIENCE_S", 0.2)
    Path("run").mkdir()
    with in_use(Path("run")), pytest.raises(ResourceError, match="R108"), in_use(Path("run")):
        pass
    said = capsys.readouterr().err
    assert said.startswith(f"note: run: process {os.getpid()} on ")
    assert said.count(" is training there; waiting up to 0 s for its end") == 1


def test_only_empty_directories_below_outputs_are_removed():
    for path in ("outputs/day/run", "mine/run", "outputs/full/run"):
        Path(path).mkdir(parents=True)
    Path("outputs/full/run/kept").touch()
    for path in ("outputs/day/run", "mine/run", "outputs/full/run"):
        discard_if_empty(Path(path))
    assert not Path("outputs/day").exists()
    assert Path("mine").is_dir()
    assert Path("outputs/full/run/kept").is_file()


# ---------------------------------------------------------------------------------- the environment


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("${oc.env:NAME}", "${oc.env:NAME}"),
        ("${a}", "${oc.env:NAME}"),
        ("x-${oc.env:NAME}-y", "x-${oc.env:NAME}-y"),
        ("${oc.env:NAME,3}", "${oc.env:NAME}"),
        ("${oc.env:OTHER,3}", "3"),
        ("${oc.env:OTHER,null}", None),
        ("${oc.decode:${oc.env:NAME}}", "${oc.decode:${oc.env:NAME}}"),
        ("${oc.decode:'[1]'}", [1]),
        ("${places.${oc.env:NAME}}", "${places.${oc.env:NAME}}"),
        ("${places}", {"here": 1}),
    ],
)
def test_a_reference_is_filled_in_unless_it_leads_to_the_environment(text, written, monkeypatch):
    monkeypatch.setenv("NAME", "here")
    config = OmegaConf.create({"x": text, "places": {"here": 1}, "a": "${oc.env:NAME}"})
    before = OmegaConf.to_container(config, resolve=True)
    assert as_written(config)["x"] == written
    assert OmegaConf.to_container(config, resolve=True) == before  # the environment is read again


SECRET = "hunter2-s3cr3t"
RECIPE = """# @package _global_
defaults: [digits]
source: ${oc.env:PACELINE_SECRET}
model: {width: "${oc.decode:${oc.env:PACELINE_WIDTH}}"}
"""


@pytest.fixture
def secret(monkeypatch):
    """Write recipes that use the environment, and return words to train with them."""
    monkeypatch.setenv("PACELINE_SECRET", SECRET)
    monkeypatch.setenv("PACELINE_WIDTH", "8")
    Path("mine/recipes").mkdir(parents=True)
    Path("mine/recipes/secret.yaml").write_text(RECIPE)
    Path("mine/recipes/failing.yaml").write_text(RECIPE + "device: ${source}\n")
    return ["train", "--config-dir", "mine", "debug=tiny"]


def leaks(folder):
    """Return the paths of the files that hold the secret."""
    paths = [path for path in Path(folder).rglob("*") if path.is_file()]
    return [str(path) for path in paths if SECRET.encode() in path.read_bytes()]


def test_a_run_is_resumed_and_reported_without_writing_the_environment(secret):
    assert paceline(*secret, "recipes=secret", "hydra.run.dir=run").code == 0
    resolved = run_dir.read_json(Path("run/resolved.json"))
    assert resolved["source"] == "${oc.env:PACELINE_SECRET}"
    assert resolved["model"]["width"] == "${oc.decode:${oc.env:PACELINE_WIDTH}}"
    assert paceline("train", "resume=run", "max_steps=4").code == 0
    assert paceline("report", "run").code == 0
    assert run_dir.read_json(Path("run/summary.json"))["steps"] == 4
    assert leaks("run") == []


def test_a_run_that_fails_over_the_environment_does_not_show_it(secret):
    words = (*secret, "recipes=failing", "prepare=null", "hydra.run.dir=run")
    done = paceline(*words)
    assert done.code in (2, 3)
    assert not Path("run").exists()
    assert SECRET not in done.last_line


@pytest.mark.parametrize("launcher", ["basic", "devices"])
def test_a_sweep_does_not_write_the_environment(secret, launcher):
    words = ("recipes=secret", "seed=1,2", "hydra.sweep.dir=sweep", f"hydra/launcher={launcher}")
    done = paceline(*secret, "-m", *words)
    assert done.code == 0
    assert leaks("sweep") == []


# ----------------------------------------------------------------------------------------- the end


def outcome(action):
    return outcome_of(action, Path(), show_traceback=False)


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (MemoryError(), 5, "error[R104]: memory: used up"),
        (OSError(errno.ENOMEM, "fork"), 5, "error[R104]: memory: [Errno 12] fork"),
        (RuntimeError("std::bad_alloc"), 5, "error[R104]: memory: std::bad_alloc"),
        (OSError(errno.ENOSPC, "full", "x"), 5, "error[R101]: x: cannot write: No space left"),
        (OSError(errno.EMFILE, "many"), 5, "error[R109]: ulimit -n: too many open files"),
        (RuntimeError("can't start new thread"), 5, "error[R110]: threads"),
        (RuntimeError("Connection closed by peer"), 7, "error[P103]: a rank"),
        (KeyboardInterrupt(), 130, "stopped at once; nothing was saved yet"),
    ],
    ids=["memory", "fork", "native", "disk", "files", "threads", "peer", "interrupted"],
)
def test_an_error_of_the_system_is_one_line(error, code, words):
    def action():
        raise error

    ended = outcome(action)
    assert ended.code == code
    assert words in ended.reason


def raised_for_memory(kind):
    refused = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8")
    raise kind(100, "model", "is refused", "correct it") from refused


@pytest.mark.parametrize("kind", [ConfigError, CheckpointError, UserCodeError])
def test_a_lack_of_memory_is_known_under_another_error_too(kind):
    ended = outcome(lambda: raised_for_memory(kind))
    assert ended.code == 5
    assert ended.reason.startswith("error[R104]: memory: DefaultCPUAllocator: can't allocate")


def test_a_file_that_claims_more_memory_than_there_is_stays_damaged():
    assert outcome(lambda: raised_for_memory(DataError)).code == 3


def test_a_lost_worker_is_known_under_another_error_too():
    def action():
        try:
            raise RuntimeError("DataLoader worker (pid 3) is killed by signal: Killed.")
        except RuntimeError:
            raise KeyError("sum")  # noqa: B904  # as a library may that was interrupted by it

    ended = outcome(action)
    assert ended.code == 5
    assert ended.reason.startswith("error[R102]: workers: a worker process was lost")


def test_an_operator_without_a_repeatable_algorithm_is_named(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)

    def action():
        rng.choose_algorithms(torch.device("cpu"), deterministic=True)
        torch.zeros(3).put_(torch.tensor([0, 0]), torch.ones(2))

    ended = outcome(action)
    rng.choose_algorithms(torch.device("cpu"), deterministic=False)
    assert ended.code == 2
    words = "error[C361]: deterministic = true: put_ has no algorithm that repeats its results; use"
    assert ended.reason.startswith(words)


def test_an_error_that_is_its_own_context_is_still_reported():
    def action():
        first, second = ValueError("first"), ValueError("second")
        first.__context__, second.__context__ = second, first
        raise first

    assert "ValueError: first" in outcome(action).reason


def test_an_error_has_the_step_after_which_it_came():
    def action():
        error = MemoryError()
        error.add_note(f"{AFTER_STEP}12")
        raise error

    assert outcome(action).step == 12


def test_the_end_of_a_run_is_written_and_printed(capsys):
    Path("checkpoints").mkdir()
    save_state(Path("checkpoints/step-00000002.pt"), {}, 2, 1)
    assert conclude(RunOutcome(5, "error[R104]: memory", 3, 1), Path(), short=False) == 5
    whole = {"code": 5, "reason": "error[R104]: memory", "step": 3, "rank": 1}
    checkpoint = "checkpoints/step-00000002.pt"
    assert run_dir.read_json(Path("exit.json")) == {**whole, "checkpoint": checkpoint}
    assert capsys.readouterr().err == "error[R104]: memory\n"
