"""A Slurm of its own in one folder: a controller and a node of two CPUs, all on loopback."""

import os
import shutil
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "scontrol")
CONF = """
ClusterName=paceline
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SchedulerType=sched/backfill
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
JobRequeue=1
KillWait=30
MailProg=/bin/true
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""


def refused() -> str:
    """Return why Slurm is impossible here, or "" if it is possible."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]
    if missing:
        return f"no {', '.join(missing)} here (Debian's slurm-wlm and munge)"
    return "" if os.geteuid() == 0 else "Slurm's daemons are started by root only"


def _path() -> str:
    return f"{os.environ['PATH']}:/usr/sbin:/sbin"


class Slurm:
    """A context in which Slurm runs. ``env`` is what its commands need to find it."""

    def __init__(self, folder: Path) -> None:
        self.folder, host = folder, socket.gethostname().split(".")[0]
        self.env = {**os.environ, "PATH": _path(), "SLURM_CONF": str(folder / "slurm.conf")}
        for name in ("state", "spool"):
            (folder / name).mkdir()
        controller, node = _free_ports(2)
        (folder / "slurm.conf").write_text(
            CONF.format(host=host, folder=folder, controller=controller, node=node)
        )
        self._daemons: list[subprocess.Popen] = []

    def __enter__(self) -> "Slurm":
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        files = {"socket": "munge.socket", "pid-file": "munge.pid"}
        files |= {"log-file": "munge.log", "seed-file": "munge.seed"}
        options = [f"--{name}={self.folder / file}" for name, file in files.items()]
        try:
            self._start("munged", "--foreground", "--force", f"--key-file={key}", *options)
            self._until((self.folder / "munge.socket").exists, "munged")
            self._start("slurmctld", "-D", "-c")
            self._start("slurmd", "-D")
            self._until(lambda: "idle" in self.ask("sinfo", "-h", "-o", "%T"), "an idle node")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.ask("scancel", "--quiet", "--user=root")
        with suppress(AssertionError):
            self._until(lambda: not self.ask("squeue", "-h"), "the end of all jobs", 40)
        for daemon in reversed(self._daemons):
            daemon.send_signal(signal.SIGTERM)
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def _start(self, *words: str) -> None:
        with (self.folder / f"{words[0]}.out").open("wb") as out:
            self._daemons.append(subprocess.Popen(words, env=self.env, stdout=out, stderr=out))

    def ask(self, *words: str) -> str:
        """Return what a command of Slurm prints."""
        return subprocess.run(
            words, env=self.env, capture_output=True, text=True, check=False
        ).stdout.strip()

    def _until(self, condition, what: str, limit_s: float = 60) -> None:
        end = time.monotonic() + limit_s
        while not condition():
            logs = "\n".join(
                path.read_text(errors="replace")[-800:] for path in self.folder.glob("*.log")
            )
            assert time.monotonic() < end, f"Slurm has no {what}: {logs}"
            time.sleep(0.2)

    def ended(self, job: str, limit_s: float) -> str:
        """Return the state that a job ends in, after all its requeues."""
        self._until(
            lambda: (
                self.state(job)
                not in ("PENDING", "RUNNING", "COMPLETING", "REQUEUED", "CONFIGURING")
            ),
            f"end of job {job}",
            limit_s,
        )
        return self.state(job)

    def state(self, job: str) -> str:
        return self.facts(job).get("JobState", "")

    def facts(self, job: str) -> dict[str, str]:
        return dict(
            word.split("=", 1)
            for word in self.ask("scontrol", "show", "job", job, "-o").split()
            if "=" in word
        )


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports
