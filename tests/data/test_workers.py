import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from framework.contracts.data import Transform
from framework.contracts.loader import LoaderContext
from framework.data import hdf5, reader
from framework.data.workers import AHEAD, Workers
from framework.errors import DataError, ResourceError, UserCodeError
from framework.loader.prefetch import PrefetchLoader
from framework.measure.clock import HostClock
from tests import conftest
from tests.contract.cases import micros, plain

ROOT = Path(__file__).parents[2]
KINDS = [(0, "thread"), (1, "thread"), (2, "thread"), (2, "process")]
every = pytest.mark.parametrize(("num", "kind"), KINDS)
HERE = os.getpid()

# ---- workers that call a function for each slice


class Reading:
    """A reader that can be pickled, calls ``read`` for each slice and reports a second for it."""

    decodes = True

    def __init__(self, read):
        self.read = read

    def check(self):
        pass

    def timed(self, request):
        return reader.Timed(self.read(request), [{"read": 1.0}])

    def begin(self, request):
        return reader.Work(request, {}, [], [], {})

    def fill(self, work, start, stop):
        part = work.request._replace(indices=work.request.indices[start:stop])
        work.parts[start] = self.read(part)
        work.slices_s.append({"read": 1.0})

    def finish(self, work):
        parts = [work.parts[start] for start in sorted(work.parts)]
        return {name: torch.cat([part[name].reshape(-1) for part in parts]) for name in parts[0]}


def requests(count):
    return (reader.Request(0, torch.tensor([number]), training=False) for number in range(count))


def read(request):
    return {"index": request.indices * 10}


def stumble(request):
    if int(request.indices[0]) == 3:
        raise LookupError("a user's mistake")
    return read(request)


def die(request):
    if int(request.indices[0]) == 9:
        os.kill(os.getpid(), signal.SIGKILL)
    return read(request)


def whereabouts(request):
    return {"thread": torch.tensor(threading.get_ident()), "process": torch.tensor(os.getpid())}


@pytest.fixture
def make():
    """Return a function that makes Workers, and close them at the end."""
    made = []

    def workers(read, num, kind):
        made.append(Workers(Reading(read), num, kind))
        return made[-1]

    yield workers
    for pool in made:
        pool.close()


def numbers(batches):
    return [int(batch["index"]) for batch in batches]


@every
def test_results_come_in_the_order_of_the_requests_also_after_an_early_close(make, num, kind):
    workers = make(read, num, kind)
    for count in (25, 0, 1):
        assert numbers(workers.map(requests(count))) == list(range(0, 10 * count, 10))
    results = workers.map(requests(20))
    next(results)
    results.close()
    assert numbers(workers.map(requests(4))) == [0, 10, 20, 30]


def test_any_error_in_a_process_comes_back_with_its_records_and_in_a_thread_as_it_is(make):
    words = r"U100.*test_workers\.py:\d+: in stumble: LookupError: a user's mistake \(records \[3\]"
    with pytest.raises(UserCodeError, match=words):
        list(make(stumble, 2, "process").map(requests(9)))
    with pytest.raises(LookupError, match="a user's mistake"):
        list(make(stumble, 2, "thread").map(requests(9)))


def test_a_process_that_is_killed_while_it_reads_is_an_error(make):
    words = r"R102.*workers\.num = 2.*process \d+ was killed by SIGKILL"
    with pytest.raises(ResourceError, match=words):
        list(make(die, 2, "process").map(requests(20)))


def test_a_process_that_dies_while_the_program_computes_is_an_error_at_the_next_batch(make):
    batches = make(whereabouts, 2, "process").map(requests(20))
    killed = int(next(batches)["process"])
    # as if it was killed between making shared memory and removing its name
    left = Path(f"/dev/shm/torch_{killed}_1_1")
    left.touch()
    os.kill(killed, signal.SIGKILL)
    # torch's SIGCHLD handler would raise here.
    assert not conftest.settled(set(), lambda: {killed} & conftest.children_of_this_process())
    with pytest.raises(ResourceError, match="R102"):
        list(batches)
    assert not left.exists()


def test_the_calling_thread_other_threads_or_processes_read(make):
    batch = next(make(whereabouts, 0, "process").map(requests(1)))
    assert (int(batch["thread"]), int(batch["process"])) == (threading.get_ident(), HERE)
    batches = list(make(whereabouts, 2, "thread").map(requests(8)))
    assert threading.get_ident() not in {int(batch["thread"]) for batch in batches}
    assert {int(batch["process"]) for batch in batches} == {HERE}
    workers = make(whereabouts, 2, "process")
    first, second = ({int(item["process"]) for item in workers.map(requests(8))} for _ in range(2))
    assert len(first - {HERE}) == 2
    assert first == second  # they live from epoch to epoch


def test_threads_take_only_a_few_requests_ahead_and_end_at_an_early_close(make):
    taken = []
    results = make(read, 2, "thread").map(taken.append(asked) or asked for asked in requests(50))
    next(results)
    assert len(taken) == AHEAD + 1
    results.close()
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if name.startswith("paceline-reader")]


# ---- the real reader, with a function that fails at record 5


class Faulty(Transform):
    """A transform whose function calls ``fault`` for images with this first pixel, or for all."""

    def __init__(self, fault, first):
        self.fault, self.first = fault, first

    def function(self, images, seed):
        if self.first in (None, images["image"].reshape(-1)[:3].tolist()):
            self.fault()
        return images


def source_with(fault, at=5, name="x.h5", **options):
    """Return a source of twelve records in batches of four, in order, of which one has a fault."""
    records = conftest.make_records(12)
    path = conftest.write_store(name, records)
    first = None if at is None else records["image"][at, :, 0, 0].tolist()
    context = conftest.make_context(shuffle=False, transform=Faulty(fault, first), **options)
    return hdf5.hdf5_source(path, context=context)


def prefetched(source):
    """Return a loader whose thread reads the source."""
    context = LoaderContext(source, torch.device("cpu"), lambda batch, _: batch, HostClock())
    return PrefetchLoader(2, False, context=context)


class Awkward(Exception):
    def __init__(self, first, second):
        super().__init__(first)
        self.second = second


class Mute(Exception):
    def __str__(self):
        raise ValueError("no words")


class Impatient(KeyboardInterrupt):
    pass


def local():
    class Local(Exception):
        pass

    raise Local("cannot be pickled")


def awkward():
    raise Awkward("one", "two")


def mute():
    raise Mute


def lines():
    raise ValueError("one\ntwo\n\x1b[31mthree")


def timeout():
    raise TimeoutError("of the user's own")


def sleep():
    time.sleep(1000)


def nothing():
    pass


@pytest.mark.parametrize(
    ("fault", "num", "kind"),
    [
        *((fault, 2, "process") for fault in (local, awkward, mute, lines)),
        (lines, 0, "thread"),
        (timeout, 2, "thread"),
    ],
)
def test_any_exception_of_a_function_is_one_line_that_names_the_record(fault, num, kind):
    source = source_with(fault, num_workers=num, worker_kind=kind)
    batches = source.batches(0)
    assert next(batches).batch["index"].tolist() == [0, 1, 2, 3]
    words = rf"^error\[U100\]: .*test_workers\.py:\d+: in {fault.__name__}: .*\(x\.h5: record 5 "
    with pytest.raises(DataError, match=words) as caught:
        next(batches)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600
    source.close()


class SlowToSend:
    """A fault that hangs. Sending it to a process takes longer than a batch may take."""

    def __reduce__(self):
        time.sleep(1.5)
        return SlowToSend, ()

    def __call__(self):
        sleep()


@pytest.mark.parametrize(
    ("fault", "method"),
    [
        pytest.param(sleep, None, id="at work"),
        pytest.param(SlowToSend(), "spawn", id="slow start", marks=pytest.mark.slow),
    ],
)
def test_a_hung_process_is_an_error_within_its_time(fault, method):
    options = {"num_workers": 1, "worker_kind": "process", "start_method": method}
    loader = prefetched(source_with(fault, worker_timeout_s=1.0, **options))
    words = r"^error\[R106\].*workers\.timeout_s = 1: no batch came within that time"
    with pytest.raises(ResourceError, match=words):
        list(loader.epoch(0))
    loader.close()


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_processes_started_in_any_way_outlive_the_thread_that_started_them(method):
    options = {"num_workers": 2, "worker_kind": "process", "start_method": method}
    alone = source_with(nothing, name="alone.h5")
    loader = prefetched(source_with(nothing, **options))
    for epoch in range(2):  # each has a thread of its own
        batches = [(plain(batch), *rest) for batch, *rest in loader.epoch(epoch)]
        assert batches == micros(alone, epoch)
    loader.close()
    alone.close()


def test_signals_to_the_workers_leave_them_at_work():
    source = source_with(nothing, num_workers=2, worker_kind="process")
    before = conftest.children_of_this_process()
    batches = source.batches(0)
    next(batches)
    for pid in conftest.children_of_this_process() - before:
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGINT)
    assert len(list(batches)) == 2
    assert len(micros(source, 1)) == 3
    source.close()


# ---- programs that end


def run_script(script):
    """Run a program in a process of its own, in this directory. Kill it after two minutes."""
    command = [sys.executable, "-c", f"from tests.data import test_workers as t\n{script}"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=120, env=environment
    )


def multiplied():
    """Spend some time in a library that lets other threads run."""
    matrix = torch.ones(600, 600)
    for _ in range(3):
        matrix = matrix @ matrix


def test_a_program_that_ends_without_closing_waits_for_nobody_and_is_not_aborted():
    script = """
loader = t.prefetched(t.source_with(t.sleep, num_workers=2, worker_timeout_s=1.0))
try:
    list(loader.epoch(0))
except t.ResourceError as error:
    print(error, flush=True)
loader.close()
kept = []
for num, kind in ((2, "process"), (2, "thread"), (0, "thread")):
    options = {"num_workers": num, "worker_kind": kind, "name": f"{num}{kind}.h5"}
    source = t.source_with(t.multiplied, at=None, **options)
    kept.append(t.prefetched(source).epoch(0))
    next(kept[-1])
raise LookupError("a mistake")
"""
    done = run_script(script)
    assert done.stdout.startswith("error[R106]: workers.timeout_s = 1: no batch came within that")
    assert done.stderr.endswith("LookupError: a mistake\n")
    assert done.returncode == 1
