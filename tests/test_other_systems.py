"""The commands on macOS and Windows, simulated: our code finds nothing that these systems lack.

Other packages still find it, since the processes here run on Linux.
"""

import json
import os
import subprocess
import sys

import pytest

# Run by Python before anything else, in workers and ranks, too.
HIDE = '''
import builtins, ctypes, faulthandler, io, os, select, signal, sys, time, types

UNIX = """fcntl resource os.fork os.getuid os.killpg os.major os.pread os.preadv os.pwrite
    os.register_at_fork os.waitpid os.O_CLOEXEC os.O_NOFOLLOW os.O_NONBLOCK select.poll
    signal.SIGCHLD signal.SIGHUP signal.SIGKILL signal.SIGUSR1 signal.SIGUSR2
    signal.pthread_sigmask time.clock_gettime faulthandler.register"""
LINUX = "os.sched_getaffinity os.sched_setaffinity os.memfd_create os.posix_fadvise os.O_DIRECT"
LACKS = {"macos": set(LINUX.split()), "windows": {*LINUX.split(), *UNIX.split()}}
lacks = LACKS[os.environ["SIMULATED"]]


def is_ours(frame):
    between = ("pathlib", "os", "io", "glob", "genericpath", "posixpath", "shutil", "contextlib")
    while frame and frame.f_globals.get("__name__", "").split(".")[0] in between:
        frame = frame.f_back
    return frame is not None and (frame.f_globals.get("__package__") or "").startswith("framework")


class Part(types.ModuleType):
    def __init__(self, whole):
        super().__init__(whole.__name__)
        self.__dict__["whole"] = whole

    def __getattr__(self, name):
        if f"{self.__name__}.{name}" in lacks:
            raise AttributeError(name)
        value = getattr(self.__dict__["whole"], name)
        if name == "CDLL" and "fcntl" in lacks:
            return lambda path, **options: value(path + "", **options)  # a TypeError for None
        return value


def hiding(call):
    def checked(path, *arguments, **options):
        hidden = str(path).startswith(("/proc", "/sys", "/dev/shm"))
        if hidden and is_ours(sys._getframe(1)):
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return call(path, *arguments, **options)
    return checked


def imported(name, globals=None, locals=None, fromlist=(), level=0):
    whole = real(name, globals, locals, fromlist, level)
    if not ((globals or {}).get("__package__") or "").startswith("framework"):
        return whole
    if name in lacks:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return parts.get(name, whole)


parts = {part.__name__: Part(part) for part in (ctypes, faulthandler, os, select, signal, time)}
real, builtins.__import__ = builtins.__import__, imported
builtins.open = io.open = hiding(io.open)
for name in ("open", "stat", "listdir", "scandir", "readlink"):
    call = getattr(os, name)
    setattr(os, name, hiding(call))
    for uses in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
        if call in uses:
            uses.add(getattr(os, name))
'''


@pytest.fixture(params=["macos", "windows"])
def simulated(request, tmp_path, monkeypatch):
    """Return what runs Python on a simulated system, in an empty folder."""
    place = tmp_path / "hide"
    place.mkdir()
    (place / "sitecustomize.py").write_text(HIDE)
    paths = os.pathsep.join([str(place), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "SIMULATED": request.param}

    def run(*words, code=0):
        options = {"cwd": tmp_path, "env": {**environment, "OMP_NUM_THREADS": "1"}, "timeout": 200}
        pipes = {"capture_output": True, "text": True}
        done = subprocess.run([sys.executable, *words], check=False, **options, **pipes)
        assert done.returncode == code, done.stdout + done.stderr
        return done

    run.system = request.param
    return run


def paceline(simulated, text, **options):
    return simulated("-m", "framework", *text.split(), **options)


def test_the_simulation_hides_what_is_missing(simulated):
    code = "from framework.system import portable as p; from framework.measure import host"
    shown = "p.has_locks(), len(p.allowed_cores())"
    shown += ", host.cpu_info('flags') or None, host.disk_kind('.')[:7]"
    last = simulated("-c", f"{code}; import os; print({shown}, os.cpu_count())").stdout.split()
    assert last[0] == str(simulated.system == "macos")
    assert last[1] == last[4]
    assert last[2:4] == ["None", "unknown"]


def test_a_run_trains_resumes_and_is_evaluated(simulated):
    done = paceline(simulated, "train max_steps=4 epochs=1 hydra.run.dir=run")
    assert ("cannot lock files" in done.stderr) == (simulated.system == "windows")
    paceline(simulated, "train resume=run max_steps=6")
    paceline(simulated, "evaluate run=run")
    paceline(simulated, "runs run")
    paceline(simulated, "verify outputs/data/digits/train.h5")
    line = paceline(simulated, "train data.stage=ram max_steps=2", code=5).stderr.splitlines()[-1]
    assert line.startswith("error[R107]: data.stage = ram")
    assert line.endswith("this system has no /dev/shm to copy it to; set data.stage=none")


def test_jobs_run_side_by_side_on_linux_alone(simulated):
    done = paceline(simulated, "train -m hydra/launcher=devices seed=1,2", code=2)
    assert done.stderr.startswith("error[C128]: hydra/launcher = devices: needs Linux")


def test_workers_read_and_pack(simulated):
    paceline(simulated, "pack input=digits output=folder output.path=digits workers=2")
    paceline(simulated, "pack input=folder input.path=digits output.path=digits.h5 workers=2")
    words = "train data.train=digits.h5 data.val=digits.h5 max_steps=4 epochs=1 workers.num=2"
    paceline(simulated, f"{words} workers.kind=thread loader=stream")
    paceline(simulated, f"{words} workers.kind=process workers.start_method=spawn")


def test_the_machine_is_described(simulated):
    doctor = json.loads(paceline(simulated, "doctor json=true").stdout)
    advice = {finding["name"]: finding["advice"] for finding in doctor["findings"]}
    assert advice["/dev/shm"] == "paceline train data.stage=none"


@pytest.mark.slow
def test_ranks_train_and_parts_are_measured(simulated):
    if simulated.system == "macos":
        paceline(simulated, "train parallel=ddp parallel.num_processes=2 max_steps=4 epochs=1")
    paceline(simulated, "diagnose seconds=3")
