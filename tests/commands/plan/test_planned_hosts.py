"""Hosts are described by words or a YAML file."""

from pathlib import Path

import pytest

from framework.commands.plan.planned_hosts import amount, planned_hosts
from framework.errors import ConfigError
from framework.measure.host import num_cores


def test_words_describe_hosts():
    words = {"hosts": "2", "ranks_per_host": "4", "cores": "16", "memory": "64G"}
    words |= {"disk": "500M/s", "network": "10G", "gpu": "H100"}
    hosts = planned_hosts(words, None)
    assert (hosts.ranks, hosts.cores_per_rank, hosts.memory) == (8, 4, 64_000_000_000)
    assert (hosts.disk, hosts.network, hosts.gpu) == (5e8, 1.25e9, "H100")


def test_a_host_is_like_this_one_unless_words_say_otherwise():
    hosts = planned_hosts({}, None)
    assert (hosts.ranks, hosts.cores) == (1, num_cores())
    assert hosts.memory > 0
    assert hosts.disk is None


def test_a_file_describes_hosts_and_words_win():
    Path("two.yaml").write_text("hosts: 2\ncores: 8\nnetwork: 25G\n")
    hosts = planned_hosts({"cores": "4"}, "two.yaml")
    assert (hosts.hosts, hosts.cores, hosts.network) == (2, 4, 25e9 / 8)


def test_null_gives_nothing():
    nothing = dict.fromkeys(("cores", "memory", "disk", "network", "gpu"), "null")
    assert planned_hosts(nothing, None) == planned_hosts({}, None)
    Path("null.yaml").write_text("gpu:\ndisk: null\n")
    assert planned_hosts({}, "null.yaml") == planned_hosts({}, None)
    Path("gpu.yaml").write_text("gpu: H100\n")
    assert planned_hosts({"gpu": "null"}, "gpu.yaml").gpu is None


@pytest.mark.parametrize(
    ("text", "value"), [("100M/s", 1e8), ("1.5G", 1.5e9), ("2T", 2e12), ("7", 7), ("3GB/s", 3e9)]
)
def test_amounts_have_units(text, value):
    assert amount("disk", text) == value


def test_a_network_is_in_bits_unless_it_says_bytes():
    assert amount("network", "10Gbit/s") == amount("network", "10G") == 1.25e9
    assert amount("network", "1GB/s") == 1e9


@pytest.mark.parametrize(
    ("own", "text", "words"),
    [
        ({"hosts": "0"}, None, "hosts = 0"),
        ({"hosts": "null"}, None, "hosts = null"),
        ({"cores": "many"}, None, "cores = many"),
        ({"memory": "64 giga"}, None, "as in 64G"),
        ({"disk": "0M/s"}, None, "as in 500M/s"),
        ({}, "host: 2", "did you mean 'hosts'"),
        ({}, "- 1", "holds no keys"),
        ({}, "a: [", "cannot be read"),
        ({}, None, "no/such"),
    ],
)
def test_what_is_no_host_is_refused(own, text, words):
    path = None
    if text is not None:
        path = "hosts.yaml"
        Path(path).write_text(text)
    elif not own:
        path = "no/such.yaml"
    with pytest.raises(ConfigError, match=words) as caught:
        planned_hosts(own, path)
    assert "C399" in str(caught.value)
