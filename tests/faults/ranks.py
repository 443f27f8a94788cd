"""Kill one of two ranks, or their parent, at any moment.

All processes must end soon, and the resumed run must end in the same bits.
"""

import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

from framework.system.durable import is_alive
from framework.system.stopping import children_of, command_of
from tests.faults.forked import Command, paceline, wait_for
from tests.faults.training import Place, difference, end_of, go_on, good, torn, words

ROOT = Path(__file__).parents[2]
DDP = ["parallel=ddp", "parallel.num_processes=2"]
DOWN_S = 15.0


def with_ranks(place: Place, folder: Path) -> Place:
    """Return the place with the end of an undisturbed run of two ranks added."""
    start = time.perf_counter()
    good(
        paceline(
            *words(place.dataset, "fp32", DDP), f"hydra.run.dir={folder / 'ddp'}", before=importable
        )
    )
    return place._replace(
        ends={**place.ends, "ddp": (*end_of(folder / "ddp"), time.perf_counter() - start)}
    )


def importable() -> None:
    """Let ranks import the tests' own model."""
    os.environ["PYTHONPATH"] = str(ROOT)


def ranks_of(pid: int) -> list[int]:
    """Return the children of ``pid`` that are ranks."""
    return [child for child in children_of(pid) if b"framework.cli.start_rank" in command_of(child)]


def one_killed(place: Place, draw: random.Random) -> str:
    """Kill a rank, or now and then the parent, with SIGKILL."""
    with Command(*go_on(place, "fp32", draw), *DDP, before=importable) as command:
        wait_for(lambda: len(ranks_of(command.pid)) == 2, "ranks")
        ranks = ranks_of(command.pid)
        time.sleep(draw.uniform(0, 0.9 * place.ends["ddp"][2]))
        victim = draw.choice([*ranks, *ranks, command.pid])
        with suppress(ProcessLookupError):  # it had finished
            os.kill(victim, signal.SIGKILL)
        start = time.monotonic()
        command.process.join(DOWN_S)
        wait_for(lambda: not any(map(is_alive, ranks)), "the ranks' end", DOWN_S)
        code, took_s = command.process.exitcode, time.monotonic() - start
    if took_s > DOWN_S or code not in (0, 7, -signal.SIGKILL):
        return f"exit code {code} after {took_s:.0f} s"
    if damaged := torn():
        return f"torn: {damaged}"
    good(paceline(*go_on(place, "fp32", draw), *DDP, before=importable))
    return difference(place, "ddp")


def killed_and_started_again(place: Place, draw: random.Random) -> str:
    """Kill a rank with SIGKILL. The launcher starts all ranks again."""
    with Command(
        *go_on(place, "fp32", draw), *DDP, "parallel.max_restarts=3", before=importable
    ) as command:
        wait_for(lambda: len(ranks_of(command.pid)) == 2, "ranks")
        ranks = ranks_of(command.pid)
        time.sleep(draw.uniform(0, 0.9 * place.ends["ddp"][2]))
        victim = draw.choice(ranks)
        with suppress(ProcessLookupError):  # it had finished
            os.kill(victim, signal.SIGKILL)
        start = time.monotonic()
        command.process.join(DOWN_S)  # both: training again, or at its end
        again = command.process.exitcode is not None or (
            len(ranks_of(command.pid)) == 2 and ranks_of(command.pid) != ranks
        )
        good(command.wait())
    return (
        difference(place, "ddp")
        if again
        else f"not at work again {time.monotonic() - start:.0f} s later"
    )


def one_killed_while_they_meet(place: Place, draw: random.Random) -> str:
    """Kill a rank with SIGKILL while the other waits for it, before anything can be saved."""
    with Command(*go_on(place, "fp32", draw), *DDP, before=importable) as command:
        wait_for(lambda: len(ranks_of(command.pid)) == 2, "ranks")
        ranks = ranks_of(command.pid)
        victim = draw.choice(ranks)
        os.kill(victim, signal.SIGSTOP)
        time.sleep(draw.uniform(3, 5))
        os.kill(victim, signal.SIGKILL)
        start = time.monotonic()
        command.process.join(DOWN_S)
        wait_for(lambda: not any(map(is_alive, ranks)), "the ranks' end", DOWN_S)
        code, took_s = command.process.exitcode, time.monotonic() - start
    return "" if code == 7 and took_s < DOWN_S else f"exit code {code} after {took_s:.0f} s"
