"""Ranks that are started, and two hosts' commands on one machine (tests/cluster has hosts)."""

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch.distributed import HashStore

from framework.errors import ConfigError, DistributedError
from framework.parallel import start_ranks
from framework.parallel.start_ranks import Endpoint, Meeting, launch, parse_endpoint
from tests.forks import forked
from tests.parallel.launching import ENVIRONMENT


def _is_alive(pid):
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and ") Z" not in stat.read_text()


def started(program, folder, **options):
    launch(2, "tests.parallel.rank_program", [program, str(folder)], ENVIRONMENT, **options)


@pytest.mark.slow
def test_a_rank_that_fails_ends_the_launch_and_leaves_no_process_and_no_variable(tmp_path):
    def process():
        return dict(os.environ), signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)

    before = process()
    with pytest.raises(DistributedError, match=r"^error\[P102\]: rank 1: ended with exit code 7"):
        started("fail", tmp_path)
    pids = [int(path.read_text()) for path in tmp_path.glob("pid.*")]
    assert len(pids) == 2
    assert not any(map(_is_alive, pids))
    assert process() == before


@pytest.mark.slow
def test_ranks_start_again_as_often_as_is_said(tmp_path):
    started("stumble", tmp_path, max_restarts=2)
    assert sorted(path.name for path in tmp_path.glob("start.*")) == [
        f"start.{rank}.{count}" for rank in range(2) for count in range(3)
    ]


@pytest.mark.slow
def test_ranks_that_fail_once_too_often_are_given_up(tmp_path):
    with pytest.raises(DistributedError, match=r"^error\[P102\]: rank 1: ended with exit code 7"):
        started("stumble", tmp_path, max_restarts=1)


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


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("a.example:29400", ("a.example", 29400)),
        ("10.0.0.1:1", ("10.0.0.1", 1)),
        ("[fe80::1]:80", ("fe80::1", 80)),
    ],
)
def test_where_hosts_meet(text, endpoint):
    assert parse_endpoint(text) == endpoint
    assert str(parse_endpoint(text)) == text


@pytest.mark.parametrize(
    "text", [None, "", "host", "host:", ":29400", "host:port", "host:0", "host:65536", "host:-1"]
)
def test_what_is_no_place_to_meet_is_refused(text):
    with pytest.raises(ConfigError, match=r"^error\[C137\]: parallel.endpoint = "):
        parse_endpoint(text)


def follow(leader_is_up, port, answers):
    leader_is_up.wait()
    own = Meeting(Endpoint("127.0.0.1", port), 2)
    answers.put((own.leads, own.share(None), own.address, own.interface))


def test_the_first_leads_and_the_others_hear_what_it_says(free_port):
    context = multiprocessing.get_context("fork")
    # forked before, since a process that has the leader's server would lead, too
    leader_is_up, answers = context.Event(), context.SimpleQueue()
    follower = forked(follow, leader_is_up, free_port, answers)
    leader = Meeting(Endpoint("127.0.0.1", free_port), 2)
    leader_is_up.set()
    assert leader.leads
    assert (leader.address, leader.interface) == ("127.0.0.1", "lo")
    assert leader.share("what to train") == "what to train"
    assert answers.get() == (False, "what to train", "127.0.0.1", "lo")
    follower.join()


def test_nobody_there_is_said(monkeypatch):
    monkeypatch.setattr(start_ranks, "MEET_S", 1)
    with pytest.raises(
        DistributedError,
        match=r"^error\[P101\]: parallel.endpoint = 192.0.2.1:29400: nobody answers there for 1 s",
    ):
        Meeting(Endpoint("192.0.2.1", 29400), 2)  # an address that nobody has, by RFC 5737


class Stopped(Exception):
    """What a signal raises."""


def stop(*_):
    raise Stopped


@pytest.fixture
def alarm():
    """Let a signal come soon."""
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    yield
    signal.signal(signal.SIGALRM, before)


@pytest.mark.timeout(60)
def test_a_signal_ends_the_waiting_for_another_host(alarm):
    with pytest.raises(Stopped):
        Meeting(Endpoint("192.0.2.1", 29400), 2)


@pytest.mark.timeout(60)
def test_a_signal_ends_the_waiting_for_what_to_train(free_port, alarm):
    with pytest.raises(Stopped):
        Meeting(Endpoint("127.0.0.1", free_port), 2).share(None)


def test_a_signal_ends_the_waiting_for_the_text_of_rank_0(monkeypatch, alarm):
    monkeypatch.setattr(start_ranks, "meet", lambda: (HashStore(), 1, 2))
    with pytest.raises(Stopped):
        start_ranks.share_text(None)


def test_an_address_of_another_host_is_not_here():
    assert start_ranks._is_here("127.0.0.1")
    assert not start_ranks._is_here("192.0.2.1")
    assert not start_ranks._is_here("no such host")


@pytest.fixture
def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def chosen(monkeypatch):
    """Return the interface that is chosen for given variables of the ranks."""
    networks = {"lo": ["127.0.0.1", "127.0.1.1"], "eth0": ["10.0.0.7"], "eth1": ["10.1.0.7"]}
    addresses = {
        name: [SimpleNamespace(address=address) for address in own]
        for name, own in networks.items()
    }
    senders = {"rank0": "10.1.0.7", "here": "127.0.1.1", start_ranks.NOWHERE: "10.0.0.7"}
    monkeypatch.setattr(start_ranks.psutil, "net_if_addrs", lambda: addresses)
    monkeypatch.setattr(start_ranks, "_sender_to", lambda host, port: senders[host])

    def choose(**variables):
        for name, value in {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", **variables}.items():
            monkeypatch.setenv(name, value)
        with monkeypatch.context() as patch:
            if "GLOO_SOCKET_IFNAME" not in variables:
                patch.setenv("GLOO_SOCKET_IFNAME", "")
                patch.delenv("GLOO_SOCKET_IFNAME")
            start_ranks.choose_interface()
            return os.environ.get("GLOO_SOCKET_IFNAME")

    return choose


def test_ranks_of_several_hosts_use_the_interface_to_the_first(chosen):
    assert chosen(MASTER_ADDR="rank0") == "eth1"


def test_a_host_whose_name_is_a_loopback_uses_the_default_route(chosen):
    assert chosen(MASTER_ADDR="here") == "eth0"


def test_ranks_of_one_host_and_who_has_chosen_are_left_alone(chosen):
    assert chosen(MASTER_ADDR="rank0", LOCAL_WORLD_SIZE="4") is None
    assert chosen(MASTER_ADDR="rank0", GLOO_SOCKET_IFNAME="ib0") == "ib0"
