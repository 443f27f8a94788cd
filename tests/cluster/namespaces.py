"""Hosts on one machine: network namespaces that veths join to a bridge, the switch, in another."""

import os
import shutil
import subprocess
from itertools import count

_numbers = count()


def refused() -> str:
    """Return why hosts are impossible here, or "" if they are possible."""
    if shutil.which("ip") is None:
        return "no 'ip' here (Debian's iproute2)"
    if os.geteuid() != 0:
        return "network namespaces are for root only"
    name = f"paceline-{os.getpid()}-try"
    done = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if done.returncode:
        return f"network namespaces cannot be made: {done.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=True)
    return ""


class Hosts:
    """A context of ``num_hosts`` hosts with the addresses 10.77.N.1, 10.77.N.2, and so on."""

    def __init__(self, num_hosts: int) -> None:
        number = next(_numbers)
        stem, self._net = f"paceline-{os.getpid()}-{number}", f"10.77.{number % 256}"
        self.names, self._switch = [f"{stem}-{host}" for host in range(num_hosts)], f"{stem}-switch"

    def __enter__(self) -> "Hosts":
        _ip("netns", "add", self._switch)
        self._at_switch("link", "add", "bridge", "type", "bridge")
        self._at_switch("link", "set", "bridge", "up")
        for host, name in enumerate(self.names):
            _ip("netns", "add", name)
            self._at_switch(
                "link", "add", f"port{host}", "type", "veth", "peer", "name", "wire", "netns", name
            )
            self._at_switch("link", "set", f"port{host}", "master", "bridge", "up")
            for words in (
                ("addr", "add", f"{self.address(host)}/24", "dev", "wire"),
                ("link", "set", "wire", "up"),
                ("link", "set", "lo", "up"),
            ):
                _ip("-n", name, *words)
        return self

    def __exit__(self, *error: object) -> None:
        for name in (*self.names, self._switch):
            _ip("netns", "del", name)

    def address(self, host: int) -> str:
        return f"{self._net}.{host + 1}"

    def on(self, host: int, *words: str) -> list[str]:
        """Return the command that replaces its own process by ``words`` on a host."""
        return ["ip", "netns", "exec", self.names[host], *words]

    def cut(self, host: int) -> None:
        """Let nothing reach a host or leave it, without telling anyone."""
        self._at_switch("link", "set", f"port{host}", "nomaster")

    def mend(self, host: int) -> None:
        self._at_switch("link", "set", f"port{host}", "master", "bridge")

    def _at_switch(self, *words: str) -> None:
        _ip("-n", self._switch, *words)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)
