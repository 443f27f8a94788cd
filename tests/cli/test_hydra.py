"""Commands as applications of Hydra, and what the guard keeps Hydra from calling or following."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from hydra import compose
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf import OmegaConf

from framework.cli.hydra_app import run_app
from framework.cli.hydra_session import GuardedLoader, hydra_session, may_set, resolved, stamp
from framework.errors import ConfigError
from framework.system.run_dir import read_json
from tests.cli.command import is_one_error_line, paceline, refusal_of
from tests.saved_runs import change


def recipe(text, folder="."):
    Path(folder, "recipes").mkdir(parents=True, exist_ok=True)
    Path(folder, "recipes/mine.yaml").write_text(
        f"# @package _global_\ndefaults: [digits]\n{text}\n"
    )


def test_hydra_composes_through_the_guard_inside_the_block():
    with hydra_session("train") as hydra:
        assert isinstance(GlobalHydra.instance().config_loader(), GuardedLoader)
        assert hydra is GlobalHydra.instance().hydra
        assert compose("train", ["epochs=3"]).epochs == 3
    assert not GlobalHydra.instance().is_initialized()


def test_every_folder_is_read_with_checks():
    with hydra_session("train", "mine") as hydra:
        sources = {source.provider: source.scheme() for source in hydra.config_loader.get_sources()}
    assert {sources[name] for name in ("main", "paceline", "command-line")} == {"paceline"}
    assert "file" not in sources.values()


def test_a_command_has_one_stamp():
    with hydra_session("train"):
        now = stamp()
    assert now == stamp()
    assert now.endswith(f"-{os.getpid()}")
    assert OmegaConf.create({"a": "${stamp:}"}).a == now


@pytest.mark.parametrize(
    "name",
    [
        *("..", "../x", "/etc/x", "a/..", "~/x", "C:\\x", "a\0b", "x\n", "\x1b[2Jx"),
        pytest.param("x" * 5000, id="long"),
    ],
    ids=ascii,
)
def test_the_directory_of_a_job_stays_in_its_sweep(name):
    with hydra_session("train"):
        folder = OmegaConf.create({"a": "0-${slug:${b}}", "b": f"source={name}"}).a
    assert os.path.basename(os.path.normpath(folder)) == folder
    os.mkdir(folder)


@pytest.mark.parametrize(
    ("config", "number", "words"),
    [
        ({"a": "???", "b": {"c": "???"}}, 103, "a, b.c: must be given; add a=... b.c=..."),
        ({"a": "${nothing}"}, 104, "a: Interpolation key 'nothing' not found"),
    ],
    ids=["missing", "dangling"],
)
def test_a_value_that_is_missing_or_leads_nowhere_is_refused(config, number, words):
    with pytest.raises(ConfigError) as caught:
        resolved(OmegaConf.create(config))
    assert f"C{number}" in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--multirn"], "did you mean '--multirun'"),
        (["--experimental-rerun=x.pickle"], "no such option"),  # it unpickles any file
        (["--resolve"], "add --cfg job"),
        (["--cfg", "jobs"], "invalid choice"),
    ],
)
def test_an_unknown_option_is_refused(words, text):
    with pytest.raises(ConfigError, match=f"C124.*{text}"):
        run_app("train", words, lambda config: 0)


def test_a_sweep_returns_the_first_bad_exit_code_of_its_jobs():
    codes = iter([0, 7, 3])
    words = ["-m", "seed=1,2,3", "hydra.sweep.dir=sweep"]
    assert run_app("train", words, lambda config: next(codes)) == 7
    assert next(codes, None) is None


@pytest.mark.parametrize("words", [["recipes=sweep_loader"], ["hydra.mode=MULTIRUN", "seed=1,2"]])
def test_a_sweep_is_refused_in_one_of_several_ranks(monkeypatch, words):
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(ConfigError, match="C122"):
        run_app("train", words, lambda config: pytest.fail("a job has begun"))
    assert not Path("outputs").exists()


def test_choices_are_completed():
    line = "paceline bench loader="
    done = paceline("-sc", "query=bash", COMP_LINE=line, COMP_POINT=str(len(line)))
    assert {"loader=plain", "loader=prefetch", "loader=stream"} <= set(done.out.split())


@pytest.mark.parametrize(
    ("path", "below"),
    [
        *(("mine/${now:%Y-%m-%d}/x", True), ("outputs/${stamp:}", True), ("/tmp/x", False)),
        *(("a/../../b", False), ("${oc.env:HOME}/x", False), ("${dataset}", False)),
        ("x${now:../..}", False),
    ],
)
def test_a_file_may_send_a_run_below_this_directory_only(path, below):
    recipe(f"hydra: {{run: {{dir: '{path}'}}}}")
    with hydra_session("train", ".") as hydra:
        if below:
            hydra.compose_config("train", ["recipes=mine"], RunMode.RUN)
            return
        with pytest.raises(ConfigError, match=r"C125\]: hydra\.run\.dir: "):
            hydra.compose_config("train", ["recipes=mine"], RunMode.RUN)


def test_the_process_of_a_launcher_composes_through_the_guard_too():
    with hydra_session("train") as hydra:
        master = hydra.compose_config("train", ["seed=3"], RunMode.MULTIRUN)
        sent = pickle.loads(pickle.dumps(hydra.config_loader))
        job = sent.load_sweep_config(master, ["optim=adam"])
        assert isinstance(sent, GuardedLoader)
        assert job.optim.lr == 1e-3  # the recipe's own is dropped


def test_a_typed_search_path_is_refused_and_nothing_on_it_imported():
    Path("evil").mkdir()
    Path("evil/__init__.py").write_text("open('ran', 'w').close()\n")
    with hydra_session("train") as hydra, pytest.raises(ConfigError, match=r"C125.*--config-dir"):
        hydra.compose_config("train", ["hydra.searchpath=[pkg://evil]"], RunMode.RUN)
    assert not Path("ran").exists()


@pytest.mark.parametrize(
    ("key", "value", "may"),
    [
        ("launcher.cpus_per_task", 2, True),
        ("job.name", "mine", True),
        ("job.chdir", True, False),
        ("job_logging.root.level", "WARNING", True),
        ("launcher.gres", "gpu:4", True),
        ("launcher.cores", 2, True),
        ("launcher.gres", "gpu:4\ntouch ran", False),
        ("launcher.setup", ["touch ran"], False),
        ("launcher._target_", "evil.Launcher", False),
        ("launcher.ray.remote.num_gpus", 4, True),
        ("launcher.ray.init.address", "ray://elsewhere", False),
        ("launcher.ray.init.runtime_env.pip", ["evil"], False),
        ("sweep.subdir", "a-${hydra.job.num}", True),
        ("sweep.subdir", "a/${hydra.job.num}", False),
        ("sweep.subdir", "${now:%D}", False),
        ("sweeper.direction", ["minimize", "maximize"], True),
        ("sweeper.params.optim.lr", "0.1,0.2", True),
        ("sweeper.storage", "sqlite:////elsewhere/x.db", False),
        ("sweeper.sampler._target_", "evil.Sampler", False),
        ("sweeper.custom_search_space", "evil.space", False),
    ],
)
def test_a_file_may_size_a_launcher_and_describe_a_search_and_no_more(key, value, may):
    assert may_set(key, value) == may


@pytest.mark.parametrize(
    "text",
    [
        "hydra: {callbacks: {x: {_target_: builtins.print}}}",
        "hydra: {job_logging: {handlers: {x: {class: logging.FileHandler, filename: x}}}}",
        "hydra: {hydra_logging: {filters: {x: {(): builtins.print}}}}",
        "hydra: {job: {env_copy: [PATH]}}",
        "hydra: {output_subdir: x}",
        "hydra: {launcher: {_target_: builtins.print}}",
        "hydra: {sweeper: {params: {hydra.callbacks.x: y}}}",
        "hydra: {sweep: {dir: '${now:.}${now:.}/x'}}",
        "hydra: {overrides: {task: [seed=1]}}",
        "hydra: {help: {header: x}}",
        'hydra: {run: {dir: "a\\n/../../x"}}',
        "hydra: {run: {dir: away/x}}",
    ],
)
def test_a_file_cannot_tell_hydra_what_to_call_or_where_to_write(text):
    recipe(text)
    Path("away").symlink_to("/")
    with hydra_session("train", ".") as hydra, pytest.raises(ConfigError, match=r"C125\]: hydra\."):
        hydra.compose_config("train", ["recipes=mine"], RunMode.RUN)


def test_a_choice_of_a_file_for_hydra_is_refused():
    Path("hydra/callbacks").mkdir(parents=True)
    Path("hydra/callbacks/x.yaml").write_text("x: {_target_: builtins.print}\n")
    Path("recipes").mkdir()
    header = "# @package _global_\ndefaults: [digits, override /hydra/callbacks: x]\n"
    Path("recipes/mine.yaml").write_text(header)
    with hydra_session("train", ".") as hydra:
        with pytest.raises(ConfigError, match=r"C125\]: hydra\.callbacks"):
            hydra.compose_config("train", ["recipes=mine"], RunMode.RUN)
        hydra.compose_config("train", ["hydra/callbacks=x"], RunMode.RUN)  # typed


def test_a_file_may_describe_a_sweep():
    keys = "{params: {seed: '1,2', optim: 'sgd,adam'}}"
    recipe(f"hydra: {{mode: MULTIRUN, sweep: {{subdir: 'a-${{hydra.job.num}}'}}, sweeper: {keys}}}")
    with hydra_session("train", ".") as hydra:
        config = hydra.compose_config("train", ["recipes=mine"], RunMode.MULTIRUN)
    assert config.hydra.sweeper.params == {"seed": "1,2", "optim": "sgd,adam"}


@pytest.mark.parametrize("place", ["${slug:away}/x", "${now:a}way/x", "x/../away", "away/x"])
def test_no_link_leads_the_run_of_a_recipe_away(tmp_path, place):
    Path("away").symlink_to(tmp_path.parent)
    recipe(f"hydra: {{run: {{dir: '{place}'}}}}")
    with hydra_session("train", ".") as hydra, pytest.raises(ConfigError, match=r"hydra\.run\.dir"):
        hydra.compose_config("train", ["recipes=mine"], RunMode.RUN)


@pytest.mark.parametrize("name", ["0-seed=1", "multirun.yaml"])
def test_no_link_leads_a_job_of_a_sweep_away(tmp_path, name):
    Path("sweep").mkdir()
    Path("sweep", name).symlink_to(tmp_path.parent / "away")
    done = paceline("train", "-m", "seed=1", "hydra.sweep.dir=sweep")
    assert is_one_error_line(done, "K126")
    assert not (tmp_path.parent / "away").exists()


def test_no_name_that_a_shell_would_run_is_completed():
    recipe("")
    Path("recipes/mine.yaml").rename("recipes/$(touch${IFS}ran).yaml")
    line = "paceline train recipes="
    done = paceline("-sc", "query=bash", COMP_LINE=line, COMP_POINT=str(len(line)))
    assert "recipes=digits" in done.out
    assert "$" not in done.out


EVIL = (
    "open('ran', 'w').close()\n"
    "from framework.model.digits_net import DigitsCNN\nclass Net(DigitsCNN): pass\n"
    "def records(item):\n    yield {'x': 1.0}\n"
)
WAYS = {
    "value": "allow_targets: [evil]",
    "environment": "hydra: {job: {env_set: {PACELINE_ALLOW_TARGETS: evil}}}",
    "callback": "hydra: {callbacks: {x: {_target_: builtins.open, file: ran, mode: w}}}",
}


@pytest.mark.parametrize("way", WAYS)
def test_a_recipe_cannot_allow_itself_anything(way):
    Path("evil.py").write_text(EVIL)
    recipe(f"model: {{_target_: evil.Net}}\n{WAYS[way]}")
    line = refusal_of("recipes=mine", config_dir=".")
    assert line.startswith("error[C105]" if way == "value" else "error[C125]")
    assert not Path("ran").exists()


def test_a_sweep_of_a_recipe_cannot_allow_itself_anything():
    Path("evil.py").write_text(EVIL)
    sweeper = 'hydra: {mode: MULTIRUN, sweeper: {params: {allow_targets: "[evil]"}}}'
    recipe(f"model: {{_target_: evil.Net}}\n{sweeper}")
    assert is_one_error_line(paceline("train", "--config-dir", ".", "recipes=mine"), "C105")
    assert not Path("ran").exists()


def test_an_input_cannot_allow_itself_anything():
    Path("evil.py").write_text(EVIL)
    Path("sent/input").mkdir(parents=True)
    keys = "function: evil.records, path: null, items: 2, classes: null"
    text = f"input: {{_target_: framework.input.function.FunctionInput, {keys}}}\n{WAYS['value']}"
    Path("sent/input/sent.yaml").write_text(f"# @package _global_\n{text}\n")
    done = paceline("pack", "--config-dir", "sent", "input=sent", "output.path=x.h5")
    assert done.code == 2, done
    assert not Path("ran").exists()


def test_the_directory_of_a_run_cannot_allow_itself_anything():
    Path("evil.py").write_text(EVIL)
    recipe("model: {_target_: evil.Net}")
    words = ["--config-dir", ".", "recipes=mine", "debug=tiny", "hydra.run.dir=run"]
    assert paceline("train", *words, "allow_targets=[evil]").code == 0
    Path("ran").unlink()
    words = read_json(Path("run/run.json"))["overrides"]
    change(Path("run/run.json"), overrides=[*words, "allow_targets=[evil]"])
    assert is_one_error_line(paceline("train", "resume=run", "max_steps=4"), "C105")
    assert not Path("ran").exists()
    assert paceline("train", "resume=run", "max_steps=4", "allow_targets=[evil]").code == 0


@pytest.mark.slow
def test_nothing_is_imported_from_the_present_folder():
    for name in ("torch", "numpy", "h5py", "multiprocessing", "json"):
        Path(f"{name}.py").write_text("open('ran', 'w').close()\n")
    words = "max_steps=1 parallel=ddp parallel.num_processes=1 workers.num=1 workers.kind=process"
    command = [sys.executable, "-m", "framework", "train", *words.split()]
    done = subprocess.run(
        [*command, "workers.start_method=spawn"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not Path("ran").exists()
