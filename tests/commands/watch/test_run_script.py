"""A watched script sees what Python gives it, and ends as it does in Python."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from framework.commands.watch.run_script import Script, run_script
from framework.errors import ConfigError
from tests.cli.command import started
from tests.faults import forked

SHOW = """
import os, sys, pickle
import beside

class Local:
    pass

print(sys.argv, __name__, __file__, sys.path[0], beside.WHAT, os.getcwd())
print(pickle.loads(pickle.dumps(Local())).__class__.__module__)
"""


def plain(*words):
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def watched(*words, run=forked.paceline, **options):
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
    assert watched(*words, run=started) == plain(*words)


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
    assert watched("script.py", before=forget_torch) == plain("script.py")


def test_a_script_chooses_its_exit_code():
    Path("script.py").write_text("import sys; sys.exit(3)")
    assert watched("script.py", before=forget_torch) == (3, "", "")


def test_a_script_stops_itself_by_ctrl_c_as_in_python():
    Path("script.py").write_text(
        "import os, signal, atexit\natexit.register(print, 'bye')\nos.kill(os.getpid(), 2)\n"
    )
    code, out, err = watched("script.py", before=forget_torch)
    assert (code, out) == (-signal.SIGINT, "bye\n")
    assert err.endswith("os.kill(os.getpid(), 2)\nKeyboardInterrupt\n")


def test_a_module_runs_as_with_m(project, monkeypatch):
    package = project / "pack"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text("from . import part\nimport sys\nprint(sys.argv[1:])\n")
    (package / "part.py").write_text("print(__name__, __package__)\n")
    monkeypatch.chdir(project)
    assert watched("-m", "pack", "1", before=forget_torch) == (0, "pack.part pack\n['1']\n", "")


def test_a_package_of_our_name_is_refused(tmp_path):
    (tmp_path / "framework").mkdir()
    (tmp_path / "train.py").write_text("")
    with pytest.raises(ConfigError, match="hides the package"):
        run_script(Script(str(tmp_path / "train.py"), False, []))
