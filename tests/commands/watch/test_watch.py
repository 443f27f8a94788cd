"""``paceline watch`` as its users meet it: four scripts as people write them."""

import json
import re
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from framework.commands.watch.watch import WatchWords, parse_watch, run_script
from framework.errors import ConfigError
from tests.cli.command import is_one_error_line, paceline, started
from tests.faults import forked

SCRIPTS = Path(__file__).parent / "scripts"


@pytest.fixture
def photos():
    """Write a folder of JPEGs in two classes, and return its path."""
    random = np.random.default_rng(0)
    for number in range(24):
        folder = Path("photos", "ab"[number % 2])
        folder.mkdir(parents=True, exist_ok=True)
        small = random.integers(0, 255, (30, 40, 3), dtype=np.uint8)
        Image.fromarray(small).resize((160, 120)).save(folder / f"{number}.jpg")
    return "photos"


def plain(script, *words):
    done = subprocess.run(
        [sys.executable, SCRIPTS / script, *words], capture_output=True, text=True, check=True
    )
    return done.stdout


def watched(script, *words):
    done = forked.paceline("watch", "output=watch.json", str(SCRIPTS / script), *words)
    assert done.code == 0, done.err
    return done, json.loads(Path("watch.json").read_text())


def test_a_plain_loop_is_watched_and_its_output_is_the_same(photos):
    done, result = watched("plain_loop.py", photos, "--epochs", "2")
    assert done.out == plain("plain_loop.py", photos, "--epochs", "2")
    assert "paceline watch: " in done.err
    assert result["facts"]["steps"] == 5
    assert result["facts"]["items"]["decoded"] == [120, 160]
    assert set(result["spans"]) >= {"wait", "copy", "forward", "backward", "optimizer", "other"}
    assert any("loss.item()" in sync["text"] for sync in result["facts"]["syncs"])


@pytest.mark.slow
def test_two_loaders_with_workers_are_distinguished():
    _, result = watched("two_loaders.py", "--delay", "0.01", "--rows", "40")
    assert result["facts"]["validation_s"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(("package", "steps"), [("accelerate", 12), ("lightning", 24)])
def test_loops_of_other_packages_are_watched(package, steps):
    if find_spec(package) is None:
        pytest.skip(f"the package {package} is not installed")
    done, result = watched(f"with_{package}.py")
    assert done.out == plain(f"with_{package}.py")
    assert result["facts"]["steps"] == steps


LOOP = """
import os, sys, torch
from torch.utils.data import DataLoader, TensorDataset
data = DataLoader(TensorDataset(torch.zeros(64, 2)), 2)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range({epochs}):
    for number, (inputs,) in enumerate(data):
        model(inputs).mean().backward()
        optimizer.step()
        if number == 9:
            {end}
    print("epoch", epoch, flush=True)
"""


def write_loop(end="pass", epochs=3):
    Path("loop.py").write_text(LOOP.format(end=end, epochs=epochs))
    return "loop.py"


def test_a_script_that_raises_is_reported_and_fails_as_before():
    script = write_loop("raise RuntimeError('bad batch')")
    done = forked.paceline("watch", "output=watch.json", script)
    assert done.code == 1
    assert done.err.endswith("RuntimeError: bad batch\n")
    assert "framework/commands/watch" not in done.err
    result = json.loads(Path("watch.json").read_text())
    assert result["facts"]["steps"] == 9
    assert result["facts"]["items"] is None


def test_the_report_comes_after_so_many_steps_and_the_script_goes_on():
    done = forked.paceline("watch", "steps=5", write_loop())
    assert done.code == 0
    assert done.out.count("epoch") == 3
    assert "where the time of 5 training steps went" in done.err


@pytest.mark.slow
def test_ctrl_c_reports_and_ends_as_python_does():
    words = [sys.executable, "-m", "framework", "watch", write_loop(epochs=10**9)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stdout.readline() == "epoch 0\n"
        time.sleep(0.1)
        run.send_signal(signal.SIGINT)
        _, err = run.communicate(timeout=60)
    assert run.returncode == -signal.SIGINT, err
    assert re.search("paceline watch: (Computing|Data) limits training", err)  # as the machine is
    assert err.endswith("KeyboardInterrupt\n")


BROKEN = """
import framework.commands.watch.measure_script as facts
def fail(*_):
    raise {error}("broken")
facts.gather_script_facts = fail
"""


@pytest.mark.parametrize(
    ("error", "words"),
    [("KeyboardInterrupt", "interrupted, so the report is not complete"), ("OSError", "broken")],
)
def test_a_report_that_fails_changes_no_exit_code(error, words):
    script = Path(write_loop())
    script.write_text(script.read_text() + BROKEN.format(error=error) + "sys.exit(3)\n")
    done = forked.paceline("watch", str(script))
    assert done.code == 3
    assert words in done.err
    assert "Traceback" not in done.err


@pytest.mark.slow
def test_under_torchrun_rank_0_reports():
    script = write_loop("torch.distributed.init_process_group('gloo') if not epoch else None")
    words = ["--standalone", "--nproc-per-node", "2", "-m", "framework", "watch", script]
    words = [sys.executable, "-m", "torch.distributed.run", *words]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("paceline watch: ") == 1
    assert "figures of rank 0 of 2" in done.stderr


def test_nothing_imports_torch_before_the_script():
    """It may set a variable that torch reads while it is imported."""
    Path("early.py").write_text("import sys\nprint('torch' in sys.modules)\nimport torch\n")
    done = started("watch", "early.py")
    assert done.out == "False\n"
    assert "No training step was seen" in done.err


@pytest.mark.parametrize(
    ("words", "number"),
    [
        *(([], None), (["steps=0", "train.py"], "C358"), (["stepz=3", "train.py"], "C358")),
        *((["steps=5"], "C358"), (["-x"], "C358")),
        *((["output=no/such/place.json", "train.py"], "C358"), (["nowhere.py"], "C359")),
        (["-m", "no.module"], "C359"),
    ],
)
def test_what_cannot_be_is_one_line(words, number):
    done = paceline("watch", *words)
    assert done.code == 2
    if number is None:
        assert done.out.startswith("usage: paceline watch")
    else:
        assert is_one_error_line(done, number), done.err


def test_keys_end_where_the_script_begins():
    asked = parse_watch(["steps=9", "train.py", "steps=8", "--cache=y"])
    assert asked == ("train.py", False, ["steps=8", "--cache=y"], 9, None)
    with pytest.raises(ConfigError, match="did you mean 'steps'"):
        parse_watch(["stepz=1", "train.py"])


SHOW = """
import os, sys, pickle
import beside

class Local:
    pass

print(sys.argv, __name__, __file__, sys.path[0], beside.WHAT, os.getcwd())
print(pickle.loads(pickle.dumps(Local())).__class__.__module__)
"""


def python(*words):
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def ended(*words, run=forked.paceline, **options):
    done = run("watch", *words, **options)
    line = "paceline watch: the script has not imported torch\n"
    assert line in done.err
    return done.code, done.out, done.err.replace(line, "")


def forget_torch():
    """Let a forked process look as if it had not imported torch."""
    del sys.modules["torch"]


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "beside.py").write_text("WHAT = 'a module beside the script'\n")
    (folder / "show.py").write_text(SHOW)
    return folder


def test_arguments_paths_classes_and_exits_are_those_of_python(project):
    with open("project/show.py", "a") as file:
        file.write("sys.exit('bad data')\n")
    words = ["project/show.py", "--lr", "0.1", "a=b", "x='y'"]
    assert ended(*words, run=started) == python(*words)


NO_LINE = """
def f():
    return 1 / 0
f.__code__ = f.__code__.replace(co_linetable=b'')  # as where Ctrl-C arrives between two lines
try:
    f()
except ZeroDivisionError as error:
    raise ValueError('no a') from error
"""


@pytest.mark.parametrize("code", [NO_LINE, "def f(:\n"])
def test_a_traceback_is_that_of_python(code):
    Path("script.py").write_text(code)
    assert ended("script.py", before=forget_torch) == python("script.py")


def test_a_script_stops_itself_by_ctrl_c_as_in_python():
    Path("script.py").write_text(
        "import os, signal, atexit\natexit.register(print, 'bye')\nos.kill(os.getpid(), 2)\n"
    )
    code, out, err = ended("script.py", before=forget_torch)
    assert (code, out) == (-signal.SIGINT, "bye\n")
    assert err.endswith("os.kill(os.getpid(), 2)\nKeyboardInterrupt\n")


def test_a_module_runs_as_with_m(project, monkeypatch):
    package = project / "pack"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text("from . import part\nimport sys\nprint(sys.argv[1:])\n")
    (package / "part.py").write_text("print(__name__, __package__)\n")
    monkeypatch.chdir(project)
    assert ended("-m", "pack", "1", before=forget_torch) == (0, "pack.part pack\n['1']\n", "")


def test_a_package_of_our_name_is_refused(tmp_path):
    (tmp_path / "framework").mkdir()
    (tmp_path / "train.py").write_text("")
    with pytest.raises(ConfigError, match="hides the package"):
        run_script(WatchWords(str(tmp_path / "train.py"), False, []))
