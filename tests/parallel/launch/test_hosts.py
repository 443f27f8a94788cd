"""Two hosts' commands on one machine; hosts of their own are in tests/cluster."""

import subprocess
import sys

import pytest

from framework.errors import ConfigError, DistributedError
from framework.parallel.launch import hosts
from framework.parallel.launch.hosts import Endpoint, Meeting, parse_endpoint


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


FOLLOW = """
from framework.parallel.launch.hosts import Meeting, Endpoint
meeting = Meeting(Endpoint("127.0.0.1", {port}), 2)
print(meeting.leads, meeting.share(None), meeting.address, meeting.interface)
"""


def test_the_first_leads_and_the_others_hear_what_it_says(free_port):
    leader = Meeting(Endpoint("127.0.0.1", free_port), 2)
    assert leader.leads
    assert (leader.address, leader.interface) == ("127.0.0.1", "lo")
    words = [sys.executable, "-c", FOLLOW.format(port=free_port)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as follower:
        assert leader.share("what to train") == "what to train"
        out, _ = follower.communicate(timeout=60)
    assert out.split(maxsplit=1)[0] == "False"
    assert out.strip() == "False what to train 127.0.0.1 lo"


def test_nobody_there_is_said(monkeypatch):
    monkeypatch.setattr(hosts, "MEET_S", 1)
    with pytest.raises(
        DistributedError,
        match=r"^error\[P101\]: parallel.endpoint = 192.0.2.1:29400: nobody answers there for 1 s",
    ):
        Meeting(Endpoint("192.0.2.1", 29400), 2)  # an address that nobody has, by RFC 5737


def test_an_address_of_another_host_is_not_here():
    assert hosts._is_here("127.0.0.1")
    assert not hosts._is_here("192.0.2.1")
    assert not hosts._is_here("no such host")


@pytest.fixture
def free_port():
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
