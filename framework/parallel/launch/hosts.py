"""Several hosts, each with a command of its own: they meet at one endpoint, and the one that holds it says what is trained."""

import fcntl
import socket
import struct
from contextlib import suppress
from datetime import timedelta
from typing import NamedTuple, final

from torch.distributed import DistNetworkError, DistStoreError
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import TCPStore  # pyright: ignore[reportPrivateImportUsage]  # the public name is an alias pyright cannot see

from framework.errors import ConfigError, DistributedError
from framework.parallel.launch.ranks import MEET_S, PREPARE_S

_SIOCGIFADDR = 0x8915  # linux/sockios.h: the IPv4 address of an interface
_KEY = "run"


class Endpoint(NamedTuple):
    """Where hosts meet."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_endpoint(text: str | None) -> Endpoint:
    """``host:port``, an IPv6 address in brackets. ConfigError C137."""
    host, _, port = (text or "").rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        what = "the hosts do not know where to meet"
        raise ConfigError(
            137,
            f"parallel.endpoint = {text}",
            what,
            "give host:port of one of them, the same on each",
        )
    return Endpoint(host, int(port))


@final
class Meeting:
    """This host among ``num_nodes``. The one where ``endpoint`` is and whose port is free holds the store, and ``leads``; the others wait for it."""

    def __init__(self, endpoint: Endpoint, num_nodes: int) -> None:
        self.endpoint, self.num_nodes = endpoint, num_nodes
        store = self._store(leads=True) if _is_here(endpoint.host) else None
        self.leads = store is not None
        store = store or self._store(leads=False)
        if store is None:
            what = f"nobody answers there for {MEET_S} s"
            raise DistributedError(
                101,
                f"parallel.endpoint = {endpoint}",
                what,
                "start the same command on its host too; look at its firewall",
            )
        self._prefixed = PrefixStore("paceline", store)

    def _store(self, leads: bool) -> TCPStore | None:
        timeout = timedelta(seconds=MEET_S)
        with suppress(DistNetworkError, DistStoreError):  # taken by another, or nobody there
            return TCPStore(
                self.endpoint.host,
                self.endpoint.port,
                is_master=leads,
                timeout=timeout,
                wait_for_workers=False,
                multi_tenant=True,  # torch's rendezvous, in this process, uses the same server
            )
        return None

    def share(self, text: str | None) -> str:
        """The leader's text on every host. ``text`` is None elsewhere. DistributedError P101 where it never comes."""
        try:
            if text is not None:
                self._prefixed.set(_KEY, text)
                return text
            self._prefixed.wait([_KEY], timedelta(seconds=PREPARE_S))
            return self._prefixed.get(_KEY).decode()
        except (DistNetworkError, DistStoreError, RuntimeError) as error:
            what = "the host there ended before it said what to train"
            raise DistributedError(
                101, f"parallel.endpoint = {self.endpoint}", what, "look there"
            ) from error

    @property
    def address(self) -> str:
        """This host's own, as the others reach it: that from which packets to the endpoint leave."""
        if self.leads:
            return self.endpoint.host
        family, _, _, _, address = socket.getaddrinfo(
            self.endpoint.host, self.endpoint.port, type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)  # sends nothing
            return str(probe.getsockname()[0])

    @property
    def interface(self) -> str | None:
        """The network interface with that address, which gloo would else guess from the host's name; None where it is not an IPv4 one's."""
        with suppress(OSError):
            mine = socket.gethostbyname(self.address)
            return next(
                (name for _, name in socket.if_nameindex() if _address_of(name) == mine), None
            )
        return None


def _is_here(host: str) -> bool:
    """Whether an address is one of this host's: only then can a socket be bound to it."""
    with suppress(OSError):
        for family, kind, _, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
            with suppress(OSError), socket.socket(family, kind) as probe:
                probe.bind(address)
                return True
    return False


def _address_of(interface: str) -> str | None:
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        return socket.inet_ntoa(answer[20:24])
    return None
