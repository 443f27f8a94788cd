"""Where ranks, and hosts that run the same command, meet and share a text."""

import os
import socket
import time
from contextlib import suppress
from datetime import timedelta
from functools import cache
from ipaddress import ip_address
from typing import Any, NamedTuple, final

import psutil
from torch.distributed import DistNetworkError, DistStoreError
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import TCPStore, rendezvous  # pyright: ignore[reportPrivateImportUsage]

from framework.errors import ConfigError, DistributedError
from framework.parallel.hang import own_peer, set_peers

PREPARE_S = 6 * 3600  # how long the leader may take to pack the missing stores
MEET_S = 120  # how long hosts and ranks may take to start
TRY_S = 2  # of one try to reach the leader: Python handles signals only between tries
LOOK_S = 0.2  # between two looks for the leader's text
NOWHERE = "192.0.2.1"  # nobody's address, by RFC 5737: packets to it take the default route


@cache
def meet() -> tuple[Any, int, int]:
    """Return (store, rank, world size), or raise RuntimeError. A process meets the others once."""
    store, rank, world_size = next(iter(rendezvous("env://", timeout=timedelta(seconds=MEET_S))))
    # torchrun's restarts reuse the agent's store: the prefix hides the addresses of a dead attempt.
    # If each attempt has its own store there is no prefix, because a host that has come back counts
    # its attempts from zero.
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        store = PrefixStore(f"attempt-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    return store, rank, world_size


def all_up(store: Any, rank: int, world_size: int) -> None:
    """Wait for every rank to start, which on a host that was lost may take long."""
    store.set(f"paceline/up/{rank}", own_peer())
    keys = [f"paceline/up/{other}" for other in range(world_size)]
    store.wait(keys, timedelta(seconds=MEET_S))
    set_peers(store.multi_get(keys))


def share_text(text: str | None, store: Any = None) -> str:
    """Return the leader's text in every process. The others pass None.

    ``store`` is by default that of the launcher, so no process group is needed yet.
    """
    if store is None:
        store, _, _ = meet()
    key = "paceline/config"
    if text is not None:
        store.set(key, text)
        return text
    end = time.monotonic() + PREPARE_S
    # Not by ``store.wait``, during which Python handles no signal: if rank 0 fails, torchrun stops
    # the other ranks, and would kill them only 30 s later.
    while not store.check([key]) and time.monotonic() < end:
        time.sleep(LOOK_S)
    return store.get(key).decode()


class Endpoint(NamedTuple):
    """Where hosts meet."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_endpoint(text: str | None) -> Endpoint:
    """Parse ``host:port``, or raise ConfigError C137. An IPv6 address is in brackets."""
    host, _, port = (text or "").rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        where = f"parallel.endpoint = {text}"
        what = "the hosts do not know where to meet"
        raise ConfigError(137, where, what, "give host:port of one of them, the same on each")
    return Endpoint(host, int(port))


@final
class Meeting:
    """This host among ``num_nodes``. The one with the free port at ``endpoint`` holds the store.

    DistributedError P101 if nobody answers there.
    """

    def __init__(self, endpoint: Endpoint, num_nodes: int) -> None:
        self.endpoint = endpoint
        self.num_nodes = num_nodes
        store = self._store(leads=True) if _is_here(endpoint.host) else None
        self.leads = store is not None
        end = time.monotonic() + MEET_S
        while store is None and time.monotonic() < end:
            store = self._store(leads=False)
        if store is None:
            where = f"parallel.endpoint = {endpoint}"
            what = f"nobody answers there for {MEET_S} s"
            fix = "start the same command on its host too; look at its firewall"
            raise DistributedError(101, where, what, fix)
        self._prefixed = PrefixStore("paceline", store)

    def _store(self, leads: bool) -> TCPStore | None:
        """Return the store, or None if the port is taken or nobody answers for ``TRY_S``."""
        with suppress(DistNetworkError, DistStoreError):
            return TCPStore(
                *self.endpoint,
                is_master=leads,
                timeout=timedelta(seconds=TRY_S),
                wait_for_workers=False,
                multi_tenant=True,  # torch's rendezvous, in this process, uses the same server
            )
        return None

    def share(self, text: str | None) -> str:
        """Return the leader's text on every host (DistributedError P101). The others pass None."""
        try:
            return share_text(text, self._prefixed)
        except RuntimeError as error:
            where = f"parallel.endpoint = {self.endpoint}"
            what = "the host there ended before it said what to train"
            raise DistributedError(101, where, what, "look there") from error

    @property
    def address(self) -> str:
        """This host's address as the others reach it: the sender of packets to the endpoint."""
        return self.endpoint.host if self.leads else _sender_to(*self.endpoint)

    @property
    def interface(self) -> str | None:
        """The network interface with the IPv4 address ``address``, or None.

        Without it gloo would guess an interface from the host's name.
        """
        return _interface_of(self.address)


def choose_interface() -> None:
    """Let gloo use the network interface that leads to the first rank's host.

    This is for ranks of several hosts that another launcher has started. By itself gloo takes the
    address of the host's name, and Debian's /etc/hosts maps that to 127.0.1.1.
    """
    num_here = os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"])
    if "GLOO_SOCKET_IFNAME" in os.environ or num_here == os.environ["WORLD_SIZE"]:
        return
    for host in (os.environ.get("MASTER_ADDR"), NOWHERE):
        with suppress(OSError):
            address = _sender_to(host or NOWHERE, 1)
            name = _interface_of(address)
            if name and not ip_address(address).is_loopback:
                os.environ["GLOO_SOCKET_IFNAME"] = name
                return


def _sender_to(host: str, port: int) -> str:
    """Return this host's address in packets to another, or raise OSError."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)  # sends nothing
        return str(probe.getsockname()[0])


def _interface_of(address: str) -> str | None:
    """Return the network interface with an IPv4 address or a name of one, or None."""
    with suppress(OSError):
        mine = socket.gethostbyname(address)
        for name, addresses in psutil.net_if_addrs().items():
            if any(address.address == mine for address in addresses):
                return name
    return None


def _is_here(host: str) -> bool:
    """Return whether an address is one of this host's: only then can a socket be bound to it."""
    with suppress(OSError):
        for family, kind, _, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
            with suppress(OSError), socket.socket(family, kind) as probe:
                probe.bind(address)
                return True
    return False
