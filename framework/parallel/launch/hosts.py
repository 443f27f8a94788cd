"""Several hosts that run the same command: they meet at one endpoint, whose host leads."""

import socket
from contextlib import suppress
from datetime import timedelta
from typing import NamedTuple, final

import psutil
from torch.distributed import DistNetworkError, DistStoreError
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from framework.errors import ConfigError, DistributedError
from framework.parallel.launch.ranks import MEET_S, PREPARE_S

_KEY = "run"


class Endpoint(NamedTuple):
    """Where hosts meet."""

    host: str
    port: int

    def __str__(self) -> str:
        if ":" in self.host:
            return f"[{self.host}]:{self.port}"
        return f"{self.host}:{self.port}"


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
    """This host among ``num_nodes``. The one with the free port at ``endpoint`` holds the store."""

    def __init__(self, endpoint: Endpoint, num_nodes: int) -> None:
        self.endpoint = endpoint
        self.num_nodes = num_nodes
        store = None
        if _is_here(endpoint.host):
            store = self._store(leads=True)
        self.leads = store is not None
        store = store or self._store(leads=False)
        if store is None:
            where = f"parallel.endpoint = {endpoint}"
            what = f"nobody answers there for {MEET_S} s"
            fix = "start the same command on its host too; look at its firewall"
            raise DistributedError(101, where, what, fix)
        self._prefixed = PrefixStore("paceline", store)

    def _store(self, leads: bool) -> TCPStore | None:
        """Return the store, or None if the port is taken or nobody answers."""
        with suppress(DistNetworkError, DistStoreError):
            return TCPStore(
                self.endpoint.host,
                self.endpoint.port,
                is_master=leads,
                timeout=timedelta(seconds=MEET_S),
                wait_for_workers=False,
                multi_tenant=True,  # torch's rendezvous, in this process, uses the same server
            )
        return None

    def share(self, text: str | None) -> str:
        """Return the leader's text on every host (DistributedError P101). The others pass None."""
        try:
            if text is not None:
                self._prefixed.set(_KEY, text)
                return text
            self._prefixed.wait([_KEY], timedelta(seconds=PREPARE_S))
            return self._prefixed.get(_KEY).decode()
        except (DistNetworkError, DistStoreError, RuntimeError) as error:
            where = f"parallel.endpoint = {self.endpoint}"
            what = "the host there ended before it said what to train"
            raise DistributedError(101, where, what, "look there") from error

    @property
    def address(self) -> str:
        """This host's address as the others reach it: the sender of packets to the endpoint."""
        if self.leads:
            return self.endpoint.host
        family, _, _, _, address = socket.getaddrinfo(*self.endpoint, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)  # sends nothing
            return str(probe.getsockname()[0])

    @property
    def interface(self) -> str | None:
        """The network interface with the IPv4 address ``address``, or None.

        Without it gloo would guess an interface from the host's name.
        """
        with suppress(OSError):
            mine = socket.gethostbyname(self.address)
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
