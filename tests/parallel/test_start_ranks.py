import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from framework.errors import DistributedError
from framework.parallel.start_ranks import launch
from tests.parallel.launching import ENVIRONMENT


def _is_alive(pid):
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and ") Z" not in stat.read_text()


@pytest.mark.slow
def test_a_rank_that_fails_ends_the_launch_and_leaves_no_process_and_no_variable(tmp_path):
    before = dict(os.environ), signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with pytest.raises(DistributedError, match=r"^error\[P102\]: rank 1: ended with exit code 7"):
        launch(2, "tests.parallel.rank_program", ["fail", str(tmp_path)], ENVIRONMENT)
    pids = [int(path.read_text()) for path in tmp_path.glob("pid.*")]
    assert len(pids) == 2
    assert not any(map(_is_alive, pids))
    assert (
        dict(os.environ),
        signal.getsignal(signal.SIGTERM),
        signal.getsignal(signal.SIGINT),
    ) == before


@pytest.mark.slow
def test_ranks_start_again_as_often_as_is_said(tmp_path):
    launch(
        2, "tests.parallel.rank_program", ["stumble", str(tmp_path)], ENVIRONMENT, max_restarts=2
    )
    assert sorted(path.name for path in tmp_path.glob("start.*")) == [
        f"start.{rank}.{count}" for rank in range(2) for count in range(3)
    ]


@pytest.mark.slow
def test_ranks_that_fail_once_too_often_are_given_up(tmp_path):
    with pytest.raises(DistributedError, match=r"^error\[P102\]: rank 1: ended with exit code 7"):
        launch(
            2,
            "tests.parallel.rank_program",
            ["stumble", str(tmp_path)],
            ENVIRONMENT,
            max_restarts=1,
        )


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)],
)
def test_a_signal_before_the_first_step_ends_the_ranks_and_who_started_them(tmp_path, number, code):
    program = (
        "import sys; from framework.system.stopping import install; "
        "from tests.parallel.launching import launched; "
        "from pathlib import Path; install(); launched('wait', Path(sys.argv[1]))"
    )
    environment = {**os.environ, **ENVIRONMENT}
    words = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=environment) as launcher:
        while len(list(tmp_path.glob("pid.*"))) < 2:
            assert launcher.poll() is None
            time.sleep(0.01)
        launcher.send_signal(number)
        said = launcher.communicate(timeout=180)[1]
    assert launcher.returncode == code
    assert said == ("interrupted\n" if number == signal.SIGINT else "stopped by SIGTERM\n")
    assert not any(_is_alive(int(path.read_text())) for path in tmp_path.glob("pid.*"))
