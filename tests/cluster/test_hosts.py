"""Hosts train together; one is killed, cut off or returns, and losses are the undisturbed run's."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cli.command import paceline
from tests.cluster.namespaces import Hosts, refused

ROOT = Path(__file__).parents[2]
LIMIT_S = 180.0
COMMON = [
    *("epochs=12", "batch_size=96", "report_every=3", "checkpoint.every_steps=6", "sink=[jsonl]"),
    "loader=plain",
]
pytestmark = [pytest.mark.cluster, pytest.mark.skipif(bool(refused()), reason=refused())]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """Pack digits, and return their path."""
    folder = tmp_path_factory.mktemp("digits")
    done = paceline(
        *("train", "recipes=digits", f"dataset={folder / 'packed'}", "max_steps=1"),
        f"hydra.run.dir={folder / 'run'}",
        cwd=folder,
    )
    assert done.code == 0, done.err
    return folder / "packed"


@pytest.fixture(scope="module")
def undisturbed(dataset, tmp_path_factory):
    """Return a function for what ``num`` ranks of one machine log."""
    folder = tmp_path_factory.mktemp("alone")
    logs = {}

    def log_of(num):
        if num not in logs:
            ddp = ["parallel=ddp", f"parallel.num_processes={num}"]
            run_dir = folder / str(num)
            done = paceline(
                *("train", *COMMON, *ddp, "recipes=digits", f"dataset={dataset}"),
                f"hydra.run.dir={run_dir}",
                cwd=folder,
            )
            assert done.code == 0, done.err
            logs[num] = log(run_dir)
        return logs[num]

    return log_of


class Run:
    """The same command on each of ``hosts``."""

    def __init__(self, hosts, run_dir, dataset, *words):
        self.hosts, self.run_dir, num = hosts, run_dir, len(hosts.names)
        nodes = [
            f"parallel.num_nodes={num}",
            f"parallel.endpoint={hosts.address(0)}:29400",
            "parallel.num_processes=1",
        ]
        ddp = ["parallel=ddp", *nodes, "parallel.max_restarts=4", "parallel.timeout_s=10"]
        self.words = [
            *("train", *COMMON, *ddp, "recipes=digits", f"dataset={dataset}"),
            *(f"hydra.run.dir={run_dir}", *words),
        ]
        self.processes = [self.start(host) for host in range(num)]

    def start(self, host):
        core = str(host % 2)  # ranks of one machine have a thread each, too
        words = self.hosts.on(
            host, "taskset", "-c", core, sys.executable, "-m", "framework", *self.words
        )
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(
            words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def reached(self, step):
        """Wait until so many steps are logged."""
        end = time.monotonic() + LIMIT_S
        while not (lines := log(self.run_dir)) or lines[-1][1] < step:
            assert time.monotonic() < end, "hangs"
            assert self.processes[0].poll() is None, self.processes[0].stdout.read()
            time.sleep(0.02)

    def ended(self):
        """Wait for all hosts, and return (exit code, output) of each."""
        outputs = [process.communicate(timeout=LIMIT_S)[0] for process in self.processes]
        return [
            (process.returncode, output)
            for process, output in zip(self.processes, outputs, strict=True)
        ]

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for process in self.processes:
            process.kill()
            process.wait()
            process.stdout.close()


def log(run_dir):
    """Return the columns of the run's metrics that are no measurements."""
    path = run_dir / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [(line["split"], line["step"], line["loss"].hex(), line["lr"].hex()) for line in lines]


@pytest.fixture
def started(tmp_path, dataset):
    """Yield ``start``: ``start(2)`` returns a run on two hosts."""
    with ExitStack() as stack:

        def start(num_hosts, *words):
            hosts = stack.enter_context(Hosts(num_hosts))
            return stack.enter_context(Run(hosts, tmp_path / "run", dataset, *words))

        yield start


def assert_finished(run):
    assert [code for code, _ in run.ended()] == [0] * len(run.processes), run.ended()
    assert json.loads((run.run_dir / "summary.json").read_text())["status"] == "finished"


@pytest.mark.parametrize("num_hosts", [2, 3])
def test_hosts_learn_what_one_machine_does(started, undisturbed, num_hosts):
    run = started(num_hosts)
    assert_finished(run)
    assert log(run.run_dir) == undisturbed(num_hosts)


@pytest.mark.parametrize("num_hosts", [2, 3])
def test_a_host_that_is_killed_may_come_back(started, undisturbed, num_hosts):
    run = started(num_hosts)
    run.reached(30)
    run.processes[1].kill()
    run.processes[1].communicate()
    run.processes[1] = run.start(1)
    assert_finished(run)
    assert log(run.run_dir) == undisturbed(num_hosts)


def test_a_cut_wire_is_survived_once_it_is_mended(started, undisturbed):
    run = started(2)
    run.reached(30)
    run.hosts.cut(1)
    time.sleep(20)  # longer than ranks wait for each other
    run.hosts.mend(1)
    while run.processes[0].poll() is None:
        if run.processes[1].poll() is not None and run.processes[0].poll() is None:
            run.processes[1].communicate()
            run.processes[1] = run.start(1)  # as whatever keeps a service running would
        time.sleep(0.5)
    assert_finished(run)
    assert log(run.run_dir) == undisturbed(2)


@pytest.mark.parametrize("host", [0, 1])
def test_a_signal_to_one_host_stops_all_with_the_state_saved(started, undisturbed, host):
    run = started(2)
    run.reached(30)
    run.processes[host].send_signal(signal.SIGUSR1)
    assert [code for code, _ in run.ended()] == [75, 75]
    run.words.append("resume=auto")
    run.processes = [run.start(number) for number in range(2)]
    assert_finished(run)
    assert log(run.run_dir) == undisturbed(2)


def test_a_host_that_waits_alone_says_whom_it_waits_for(tmp_path, dataset):
    with Hosts(2) as hosts:
        words = [
            sys.executable,
            "-c",
            (
                "import framework.parallel.start_ranks as h; h.MEET_S = 1; "
                "from framework.main import main; main()"
            ),
        ]
        words = ["parallel=ddp", "parallel.num_nodes=2"]
        ddp = [*words, f"parallel.endpoint={hosts.address(0)}:29400"]
        done = subprocess.run(
            hosts.on(1, *words, "train", *ddp, "recipes=digits", f"dataset={dataset}"),
            cwd=tmp_path,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                # torch is imported before the command here
                "TORCH_CPP_LOG_LEVEL": "FATAL",
            },
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    assert done.returncode == 7
    assert done.stderr.startswith("error[P101]: parallel.endpoint = "), done.stderr
    assert not list(tmp_path.glob("outputs/*"))
