"""Start ranks with torchrun's library, which restarts all ranks if one dies, and let them meet.

Ranks, and hosts that run the same command, meet at a store and share a text.
"""

import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cache
from ipaddress import ip_address
from types import FrameType
from typing import Any, NamedTuple, final

import psutil
from torch.distributed import DistNetworkError, DistStoreError
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import TCPStore, rendezvous  # pyright: ignore[reportPrivateImportUsage]

from framework.errors import ConfigError, DistributedError
from framework.parallel.hang import own_peer, set_peers
from framework.system import stopping

SAVE_S = 600  # the most time that stopped ranks get to end their step and save
LOOK_S = 0.1  # the time between two checks of the ranks, the launcher, or the leader's text
JOIN_S = 600  # the most time that hosts wait for a host that was lost
PREPARE_S = 6 * 3600  # how long the leader may take to pack the missing stores
MEET_S = 120  # how long hosts and ranks may take to start
TRY_S = 2  # of one try to reach the leader: Python handles signals only between tries
NOWHERE = "192.0.2.1"  # nobody's address, by RFC 5737: packets to it take the default route


@cache
def meet() -> tuple[Any, int, int]:
    """Return (store, rank, world size), or raise RuntimeError. A process meets the others once."""
    store, rank, world_size = next(iter(rendezvous("env://", timeout=timedelta(seconds=MEET_S))))
    # torchrun's restarts reuse the agent's store: the prefix hides the addresses of a dead attempt.
    # A store of each attempt's own has none: a host that has come back counts them from zero.
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
        # this host's address as the others reach it: the sender of packets to the endpoint
        self.address = endpoint.host if self.leads else _sender_to(*endpoint)
        # Without the interface, or None, gloo would guess one from the host's name.
        self.interface = _interface_of(self.address)

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


def choose_interface() -> None:
    """Let gloo use the network interface that leads to the first rank's host.

    This is for ranks of several hosts that another launcher has started. By itself gloo takes the
    address of the host's name, which is a loopback address on Debian.
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


def launch(
    num_processes: int,
    module: str,
    arguments: list[str],
    environment: dict[str, str],
    max_restarts: int = 0,
    meeting: Meeting | None = None,
) -> int:
    """Run ``python -m module arguments`` as ranks on this machine, and wait for their end.

    A call restores the environment, and on one host uses a free port, so a sweep can repeat it. The
    ranks get the variables of this process and of ``environment``. If one fails, all are restarted,
    at most ``max_restarts`` times. ``meeting`` leads to the other hosts, if there are any.

    Return 0, or the number of the signal that ended the ranks after they had time to save.
    DistributedError P102 if ranks fail too often, P101 if the hosts cannot reach each other.
    """
    # These modules are slow to import.
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs  # noqa: PLC0415
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError  # noqa: PLC0415
    from torch.distributed.elastic.rendezvous import RendezvousError  # noqa: PLC0415
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch  # noqa: PLC0415

    options: dict[str, Any] = {}
    if "shutdown_timeout" in LaunchConfig.__dataclass_fields__:  # not in older versions of torch
        options["shutdown_timeout"] = SAVE_S
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=num_processes,
        run_id=f"paceline-{os.getpid()}",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",  # a free port
        max_restarts=max_restarts,
        monitor_interval=0.1,
        logs_specs=DefaultLogsSpecs(log_dir=os.devnull),
        **options,
    )
    where = "parallel"
    if meeting is not None:
        where = f"parallel.endpoint = {meeting.endpoint}"
        config = replace(
            config,
            min_nodes=meeting.num_nodes,
            max_nodes=meeting.num_nodes,
            run_id="paceline",
            rdzv_endpoint=str(meeting.endpoint),
            rdzv_configs={"is_host": meeting.leads, "join_timeout": JOIN_S},
            local_addr=meeting.address,
        )
    entry = elastic_launch(config, sys.executable)
    ranks = _Ranks(module, num_processes, lambda: entry("-m", module, *arguments))
    # Silence torchrun for good, since the ranks report their own errors. Each logger has a level.
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("torch.distributed.elastic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
    before = dict(os.environ)
    # Restarted gloo ranks find stale addresses in a shared store: pytorch#135712.
    os.environ.update(environment, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
    try:
        return ranks.run(meeting is not None)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        what = f"ended with exit code {failure.exitcode}"
        fix = "read its own message above"
        raise DistributedError(102, f"rank {rank}", what, fix) from error
    except RendezvousError as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        what = f"the hosts cannot reach each other ({reason})"
        raise DistributedError(101, where, what, "check the other hosts") from error
    finally:
        os.environ.clear()
        os.environ.update(before)


@dataclass(eq=False)
class _Ranks:
    """The rank processes of this host, and torch's launcher, in a thread that signals do not reach.

    The ranks are recognized by the ``module`` that they run. ``call`` runs the launcher.
    """

    module: str
    num_processes: int
    call: Callable[[], object]
    error: BaseException | None = None  # of the launcher
    signal: int = 0  # the number of the first signal; 0: none came
    signal_at: float = 0.0  # when the first signal came
    signaled: set[int] = field(default_factory=set[int])  # the ranks that got it from here
    seen: bool = False  # whether there was a rank at all
    all_trained: bool = False  # whether all ranks have done their first step
    threads: list[threading.Thread] = field(default_factory=list[threading.Thread])

    def stop(self) -> None:
        """Do nothing: the launcher ends by itself once the ranks of all hosts have ended."""

    def run(self, has_other_hosts: bool) -> int:
        """Run the launcher. Return the number of the signal that stopped the ranks, or 0.

        Until all ranks have done their first step there is nothing to save, so a signal ends this
        process. After a signal, do not wait for a launcher that waits for other hosts.
        """
        thread = threading.Thread(target=self._launch, name="paceline-launch", daemon=True)
        is_main = threading.current_thread() is threading.main_thread()
        with stopping.handled(stopping.NUMBERS, self._on_signal):
            with stopping.blocked_signals():
                thread.start()
            self.threads.append(thread)
            stopping.stop_at_end(self)
            while thread.is_alive():
                thread.join(LOOK_S)
                if is_main:
                    self._look()
                waits_for_hosts = self.signal and has_other_hosts and self.seen
                if waits_for_hosts and not self._living():
                    return self.signal
        if self.error is not None and not self.signal:
            raise self.error
        return self.signal

    def _launch(self) -> None:
        try:
            self.call()
        except BaseException as error:  # noqa: BLE001  # raised by ``run``
            self.error = error

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self.signal:
            self.signal = number
            self.signal_at = time.monotonic()
        elif time.monotonic() - self.signal_at > stopping.SAME_S:
            stopping.end(number)

    def _look(self) -> None:
        living = self._living()
        ready = {pid for pid in living if stopping.expects_signals(pid)}  # after its first step
        self.seen = self.seen or bool(living)
        self.all_trained = self.all_trained or len(ready) >= self.num_processes
        if not self.signal:
            return
        for pid in ready - self.signaled:
            self.signaled.add(pid)
            with suppress(ProcessLookupError):
                os.kill(pid, self.signal)
        starting = not self.all_trained and (not self.seen or self._living())
        if starting or time.monotonic() - self.signal_at > SAVE_S:
            stopping.end(self.signal)

    def _living(self) -> list[int]:
        module = self.module.encode()
        children = stopping.children_of(os.getpid())
        return [pid for pid in children if module in stopping.command_of(pid)]
