import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from framework.contracts.loader import LoaderContext
from framework.data.hdf5 import hdf5_source
from framework.data.lmdb import lmdb_source
from framework.data.reader import ReadWork, Request, Timed
from framework.data.source import StoreSource
from framework.data.workers import AHEAD, Workers, _Pool
from framework.errors import ConfigError, DataError, PacelineError, ResourceError, UserCodeError  # noqa: F401  # for SCRIPT
from framework.loader.plain import PlainLoader
from framework.loader.prefetch import PrefetchLoader
from framework.measure.clock import HostClock
from tests.conftest import (
    children_of_this_process,
    make_context,
    make_records,
    settled,
    write_store,
)
from tests.contract.cases import IMAGE_FIELDS, jpeg, micros
from tests.forks import forked

ROOT = Path(__file__).parents[2]
KINDS = [(0, "thread"), (1, "thread"), (2, "thread"), (2, "process")]
HERE = os.getpid()


class Reading:
    """A reader that calls ``read`` for each slice and reports a second for it.

    Like the real reader, it can be pickled.
    """

    decodes = True

    def __init__(self, read):
        self.read = read

    def check(self):
        pass

    def timed(self, request):
        return Timed(self.read(request), [{"read": 1.0}])

    def begin(self, request):
        return ReadWork(request, {}, {}, [], [])

    def fill(self, work, start, stop):
        work.parts[start] = self.read(
            work.request._replace(indices=work.request.indices[start:stop])
        )
        work.slices_s.append({"read": 1.0})

    def finish(self, work):
        parts = [work.parts[start] for start in sorted(work.parts)]
        return {name: torch.cat([part[name].reshape(-1) for part in parts]) for name in parts[0]}


def _requests(count):
    return (Request(0, torch.tensor([number]), training=False) for number in range(count))


def _read(request):
    return {"index": request.indices * 10}


def _read_badly(request):
    if int(request.indices[0]) == 3:
        raise DataError(106, "record 3", "not a readable image", "mend it")
    return _read(request)


def _stumble(request):
    if int(request.indices[0]) == 3:
        raise LookupError("a user's mistake")
    return _read(request)


def _die(request):
    if int(request.indices[0]) == 9:
        os.kill(os.getpid(), signal.SIGKILL)
    return _read(request)


def _who(request):
    return {"thread": torch.tensor(threading.get_ident()), "process": torch.tensor(os.getpid())}


@pytest.fixture
def make():
    """Return a function that makes Workers, and close them at the end."""
    made = []

    def workers(read, num, kind, *more):
        made.append(Workers(Reading(read), num, kind, *more))
        return made[-1]

    yield workers
    for pool in made:
        pool.close()


@pytest.mark.parametrize(("num", "kind"), KINDS)
def test_results_come_in_the_order_of_the_requests(make, num, kind):
    workers = make(_read, num, kind)
    for count in (25, 0, 1, 7):
        assert [int(batch["index"]) for batch in workers.map(_requests(count))] == list(
            range(0, 10 * count, 10)
        )


@pytest.mark.parametrize(("num", "kind"), KINDS)
def test_the_seconds_of_what_was_handed_over_come_with_it(make, num, kind):
    workers = make(_read, num, kind)
    batches = workers.map(_requests(7))
    for _ in range(3):
        next(batches)
    assert workers.stages.take() == {"read": 3.0}
    assert len(list(batches)) == 4
    assert (workers.stages.take(), workers.stages.take()) == ({"read": 4.0}, {})


@pytest.mark.parametrize(("num", "kind"), KINDS)
def test_an_error_is_raised_where_the_result_would_have_come(make, num, kind):
    results = make(_read_badly, num, kind).map(_requests(9))
    assert [int(next(results)["index"]) for _ in range(3)] == [0, 10, 20]
    with pytest.raises(DataError, match=r"D106.*record 3: not a readable image; mend it"):
        next(results)


@pytest.mark.parametrize(("num", "kind"), KINDS)
def test_after_an_error_the_next_requests_are_answered(make, num, kind):
    workers = make(_read_badly, num, kind)
    with pytest.raises(DataError):
        list(workers.map(_requests(9)))
    assert [int(batch["index"]) for batch in workers.map(_requests(3))] == [0, 10, 20]


@pytest.mark.parametrize(("num", "kind"), KINDS[1:])
def test_a_closed_iterator_leaves_no_old_result_to_the_next(make, num, kind):
    workers = make(_read, num, kind)
    results = workers.map(_requests(20))
    next(results)
    results.close()
    assert [int(batch["index"]) for batch in workers.map(_requests(4))] == [0, 10, 20, 30]


def test_any_error_in_a_process_comes_back_in_words_that_name_the_records(make):
    words = (
        r"U100.*test_workers\.py:\d+: in _stumble: LookupError: a user's mistake \(records \[3\]"
    )
    with pytest.raises(UserCodeError, match=words):
        list(make(_stumble, 2, "process").map(_requests(9)))


def test_any_error_in_a_thread_comes_back_as_it_is(make):
    with pytest.raises(LookupError, match="a user's mistake"):
        list(make(_stumble, 2, "thread").map(_requests(9)))


def _lose_a_worker(queue):
    """Lose one of two worker processes, and tell the parent what is raised."""
    workers = Workers(Reading(_die), 2, "process")
    try:
        list(workers.map(_requests(20)))
    except BaseException as error:  # noqa: BLE001  # the parent sees every error
        queue.put((type(error).__name__, str(error)))


@pytest.mark.parametrize("attempt", range(3))
def test_a_killed_process_is_a_resource_error(attempt):
    queue = multiprocessing.get_context("fork").SimpleQueue()
    child = forked(_lose_a_worker, queue)
    child.join(60)
    assert child.exitcode is not None, "it hangs"
    assert not queue.empty(), "it ended without a word"
    kind, words = queue.get()
    assert kind == ResourceError.__name__, words
    assert re.search(r"R102.*workers\.num = 2.*process \d+ was killed by SIGKILL", words)


def test_a_process_that_dies_while_the_program_computes_is_an_error_at_the_next_batch(make):
    batches = make(_who, 2, "process").map(_requests(20))
    killed = int(next(batches)["process"])
    # as if it was killed between making shared memory and removing its name
    left = Path(f"/dev/shm/torch_{killed}_1_1")
    left.touch()
    os.kill(killed, signal.SIGKILL)
    # torch's SIGCHLD handler would raise here.
    assert not settled(set(), lambda: {killed} & children_of_this_process())
    with pytest.raises(ResourceError, match="R102"):
        list(batches)
    assert not left.exists()


def test_no_workers_means_the_callers_thread(make):
    batch = next(make(_who, 0, "process").map(_requests(1)))
    assert int(batch["thread"]) == threading.get_ident()
    assert int(batch["process"]) == HERE


def test_threads_are_other_threads_of_this_process(make):
    batches = list(make(_who, 2, "thread").map(_requests(8)))
    assert threading.get_ident() not in {int(batch["thread"]) for batch in batches}
    assert {int(batch["process"]) for batch in batches} == {HERE}


def test_processes_are_as_many_as_asked_and_live_from_epoch_to_epoch(make):
    workers = make(_who, 2, "process")
    first, second = (
        {int(batch["process"]) for batch in workers.map(_requests(8))} for _ in range(2)
    )
    assert len(first) == 2
    assert first == second
    assert HERE not in first


def test_threads_take_only_a_few_requests_ahead(make):
    taken = []
    results = make(_read, 2, "thread").map(
        taken.append(request) or request for request in _requests(50)
    )
    next(results)
    assert len(taken) == AHEAD + 1
    results.close()


def test_an_early_close_of_threads_leaves_none(make):
    results = make(_read, 2, "thread").map(_requests(50))
    next(results)
    results.close()
    assert not [
        thread for thread in threading.enumerate() if thread.name.startswith("paceline-reader")
    ]


def test_closing_ends_the_processes():
    before = set(multiprocessing.active_children())
    workers = Workers(Reading(_read), 2, "process")
    list(workers.map(_requests(3)))
    assert len(set(multiprocessing.active_children()) - before) == 2
    workers.close()
    assert not set(multiprocessing.active_children()) - before


def test_the_global_random_numbers_do_not_depend_on_the_workers(make):
    state = torch.get_rng_state()
    list(make(_read, 2, "process").map(_requests(3)))
    assert torch.equal(torch.get_rng_state(), state)


def test_an_unknown_kind_is_refused():
    with pytest.raises(ConfigError, match=r"C107.*workers\.kind = fiber"):
        Workers(Reading(_read), 1, "fiber")


# ------------------------------------------------------ with the real reader, and a user's function


class Awkward(Exception):
    def __init__(self, first, second):
        super().__init__(first)
        self.second = second


class Mute(Exception):
    def __str__(self):
        raise ValueError("no words")


class Impatient(KeyboardInterrupt):
    pass


def _ordinary():
    raise LookupError("a user's mistake")


def _local():
    class Local(Exception):
        pass

    raise Local("cannot be pickled")


def _awkward():
    raise Awkward("one", "two")


def _mute():
    raise Mute


def _huge():
    raise ValueError("x" * 10_000_000)


def _group():
    raise ExceptionGroup("several", [ValueError("one"), KeyError("two")])


def _lines():
    raise ValueError("one\ntwo\n\x1b[31mthree")


def _timeout():
    raise TimeoutError("of the user's own")


FAULTS = {
    fault.__name__[1:]: fault
    for fault in (_ordinary, _local, _awkward, _mute, _huge, _group, _lines, _timeout)
}


class Faulty:
    """A transform whose function fails on images whose first pixel is that of record 5."""

    size, antialias, num_draws = None, True, 0

    def __init__(self, fault, first):
        self.fault, self.first = fault, first

    def windows(self, sizes, draws):
        return torch.cat(
            [torch.zeros_like(sizes), sizes, torch.zeros(len(sizes), 1, dtype=torch.int64)], dim=1
        )

    def function(self, images, seed):
        if images["image"].reshape(-1)[:3].tolist() == self.first:
            self.fault()
        return images


def _sleep():
    time.sleep(1000)


def _kill():
    os.kill(os.getpid(), signal.SIGKILL)


def _impatient():
    raise Impatient


def _source(fault, suffix="h5", **options):
    """Return a source of twelve records in batches of four, in order; record 5 is the bad one."""
    records = make_records(12)
    path = write_store(f"x.{suffix}", records)
    first = records["image"][5].transpose(1, 2, 0).reshape(-1)[:3].tolist()
    make = {"h5": hdf5_source, "lmdb": lmdb_source}[suffix]
    return make(
        path, context=make_context(shuffle=False, transform=Faulty(fault, first), **options)
    )


LOADERS = {
    "plain": lambda c: PlainLoader(False, context=c),
    "prefetch": lambda c: PrefetchLoader(2, False, context=c),
}
ONE_LOADER = ["prefetch", pytest.param("plain", marks=pytest.mark.slow)]  # in make test


def _loader(name, source):
    return LOADERS[name](
        LoaderContext(source, torch.device("cpu"), lambda batch, _: batch, HostClock())
    )


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize(("num", "kind"), KINDS)
@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_a_function_raises_is_one_line_that_names_the_record(fault, num, kind, loader):
    loader = _loader(loader, _source(FAULTS[fault], num_workers=num, worker_kind=kind))
    batches = loader.epoch(0)
    assert next(batches).batch["index"].tolist() == [0, 1, 2, 3]
    words = (
        rf"^error\[U100\]: .*test_workers\.py:\d+: in _{fault}: .*\(x\.h5: record 5 \(record-5\)\)"
    )
    with pytest.raises(DataError, match=words) as caught:
        next(batches)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600
    loader.close()


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize(("num", "kind"), [(0, "thread"), (2, "thread"), (2, "process")])
def test_an_interrupt_in_a_function_ends_the_epoch_and_hangs_nobody(num, kind, loader):
    loader = _loader(loader, _source(_impatient, num_workers=num, worker_kind=kind))
    with pytest.raises((KeyboardInterrupt, ResourceError)):
        list(loader.epoch(0))
    loader.close()


@pytest.mark.parametrize("loader", LOADERS)
def test_a_hung_process_is_an_error_within_its_time(loader):
    loader = _loader(
        loader, _source(_sleep, num_workers=2, worker_kind="process", worker_timeout_s=1.0)
    )
    with pytest.raises(
        ResourceError,
        match=r"^error\[R106\].*workers\.timeout_s = 1: no batch came within that time",
    ):
        list(loader.epoch(0))
    loader.close()


def test_a_process_that_hangs_after_a_slow_start_is_an_error_too():
    source = _source(
        SlowToSend(),
        num_workers=1,
        worker_kind="process",
        worker_timeout_s=1.0,
        start_method="spawn",
    )
    with pytest.raises(ResourceError, match=r"^error\[R106\]"):
        list(source.batches(0))
    source.close()


class SlowToSend:
    """A fault that hangs. Sending it to a process takes longer than a batch may take."""

    def __reduce__(self):
        time.sleep(1.5)
        return SlowToSend, ()

    def __call__(self):
        _sleep()


@pytest.mark.parametrize("loader", ONE_LOADER)
def test_a_killed_process_is_an_error(loader):
    script = SCRIPT.format(
        fault="_kill",
        loader=loader,
        options="num_workers=2, worker_kind='process', worker_timeout_s=60.0",
    )
    done = run_script(script)
    assert re.match(r"error\[R102\]: workers\.num = 2: a worker process was lost", done.stdout), (
        done.stderr
    )
    assert done.returncode == 0


SCRIPT = """
import sys
from tests.data import test_workers as t
loader = t._loader("{loader}", t._source(t.{fault}, {options}))
try:
    list(loader.epoch(0))
except t.PacelineError as error:
    print(error, flush=True)
loader.close()
"""


@pytest.mark.parametrize("loader", ONE_LOADER)
def test_a_program_that_ends_without_closing_waits_for_no_process(loader):
    script = f"""
from tests.data import test_workers as t
loader = t._loader("{loader}", t._source(int, num_workers=2, worker_kind="process"))
batches = loader.epoch(0)
next(batches)
raise LookupError("a mistake")
"""
    done = run_script(script)
    assert done.stderr.endswith("LookupError: a mistake\n")
    assert done.returncode == 1


def multiplied(key):
    """Spend some time in a library that lets other threads run."""
    matrix = torch.ones(1100, 1100)
    for _ in range(3):
        matrix = matrix @ matrix
    return key


@pytest.mark.parametrize(
    ("loader", "num"),
    [
        ("prefetch", 2),
        pytest.param("prefetch", 0, marks=pytest.mark.slow),
        pytest.param("plain", 2, marks=pytest.mark.slow),
    ],
)
def test_no_thread_is_inside_a_library_when_python_ends(loader, num):
    script = f"""
from tests.data import test_workers as t
loader = t._loader("{loader}", t._source(t.multiplied, num_workers={num}))
batches = loader.epoch(0)
next(batches)
raise LookupError("a mistake")
"""
    for _ in range(3):  # without the wait for threads, most of them abort
        done = run_script(script)
        assert done.stderr.endswith("LookupError: a mistake\n")
        assert done.returncode == 1


def test_calls_of_a_stopped_pool_are_cancelled():
    pool = _Pool(1)
    begun, ends = threading.Event(), threading.Event()
    first = pool.submit(lambda: (begun.set(), ends.wait()))
    assert begun.wait(60)
    second = pool.submit(print)
    pool.stop()
    third = pool.submit(print)
    assert second.cancelled()
    assert third.cancelled()
    ends.set()
    pool.close(wait=True)
    assert first.done()


def test_a_thread_that_cannot_begin_raises_where_results_are_awaited(monkeypatch):
    calls = iter([OSError("libgomp.so.1 (deleted)")])

    def limit(_):
        for error in calls:
            raise error

    monkeypatch.setattr("framework.data.workers.limit_threads", limit)
    pool = _Pool(1)
    with pytest.raises(OSError, match="deleted"):
        pool.submit(print).result(60)
    assert pool.submit(int).result(60) == 0
    pool.close(wait=True)


def run_script(script, limit_s=60):
    """Run a program in a process of its own, in this directory. Kill it after ``limit_s``."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", script],
        check=False,
        capture_output=True,
        text=True,
        timeout=limit_s,
        env=environment,
    )


@pytest.mark.parametrize("loader", ONE_LOADER)
def test_a_program_with_a_hung_thread_says_so_and_ends(loader):
    script = SCRIPT.format(
        fault="_sleep", loader=loader, options="num_workers=2, worker_timeout_s=1.0"
    )
    assert re.match(
        r"error\[R106\]: workers\.timeout_s = 1: no batch came within that time",
        run_script(script).stdout,
    )


@pytest.mark.slow
def test_a_source_closed_with_a_hung_process_leaves_none():
    source = _source(_sleep, num_workers=2, worker_kind="process")
    before = children_of_this_process()
    batches = source.batches(0)
    next(batches)
    batches.close()
    source.close()
    assert not settled(before, children_of_this_process)


def test_an_epoch_after_one_that_was_left_with_a_hung_process_is_an_error_too():
    source = _source(_sleep, num_workers=1, worker_kind="process", worker_timeout_s=1.0)
    batches = source.batches(0)
    next(batches)
    batches.close()
    with pytest.raises(ResourceError, match="R106"):
        list(source.batches(1))
    source.close()


def _nothing():
    pass


@pytest.mark.parametrize("suffix", ["h5", pytest.param("lmdb", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "method", ["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.slow)]
)
def test_processes_started_in_any_way_give_the_same_batches(method, suffix):
    alone = _source(_nothing, suffix)
    expected = [micros(alone, epoch) for epoch in range(2)]  # its file stays open
    for num in (1, 2):
        source = StoreSource(
            alone.store,
            make_context(
                shuffle=False, num_workers=num, worker_kind="process", start_method=method
            ),
        )
        assert [micros(source, epoch) for epoch in range(2)] == expected
        source.workers.close()
    alone.close()


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_processes_outlive_the_thread_that_started_them(method, loader):
    loader = _loader(
        loader, _source(_nothing, num_workers=2, worker_kind="process", start_method=method)
    )
    epochs = [
        [micro.batch["index"].tolist() for micro in loader.epoch(epoch)] for epoch in range(3)
    ]
    assert epochs == [[[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]] * 3
    loader.close()


def test_sigterm_to_the_workers_leaves_them_at_work():
    source = _source(_nothing, num_workers=2, worker_kind="process")
    before = children_of_this_process()
    batches = source.batches(0)
    next(batches)
    for pid in children_of_this_process() - before:
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGINT)
    assert len(list(batches)) == 2
    assert len(micros(source, 1)) == 3
    source.close()


@pytest.mark.slow
def test_workers_end_when_their_parent_is_killed():
    script = (
        "import os, signal\n"
        "from tests.data import test_workers as t\n"
        "from tests.conftest import children_of_this_process\n"
        "source = t._source(t._nothing, num_workers=2, worker_kind='process')\n"
        "next(source.batches(0))\n"
        "print(*children_of_this_process(), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    pids = {int(pid) for pid in run_script(script).stdout.split()}
    assert len(pids) >= 2
    assert not settled(set(), lambda: {pid for pid in pids if is_running(pid)}, wait_s=15)


@pytest.mark.slow
def test_workers_that_are_still_starting_end_when_their_parent_is_killed():
    script = """
import os, signal, sys, threading
from tests.conftest import children_of_this_process
from tests.data import test_workers as t

def kill_early():
    while len(pids := children_of_this_process()) < 4:  # with the resource tracker
        pass
    print(*pids, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    source = t._source(t._nothing, num_workers=3, worker_kind="process", start_method="spawn")
    threading.Thread(target=kill_early).start()
    next(source.batches(0))
"""
    Path("early.py").write_text(script)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with open("pids.txt", "w+") as out, open("errors.txt", "w") as err:
        subprocess.run(
            [sys.executable, "early.py"], check=False, stdout=out, stderr=err, env=environment
        )
        out.seek(0)
        pids = {int(pid) for pid in out.read().split()}
    assert len(pids) >= 2
    assert not settled(set(), lambda: {pid for pid in pids if is_running(pid)}, wait_s=60)


def is_running(pid):
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


@pytest.mark.parametrize(
    ("num", "kind"), [(0, "thread"), (1, "thread"), (3, "thread"), (2, "process")]
)
def test_memory_of_a_batch_is_not_written_again(num, kind):
    source = _source(_nothing, num_workers=num, worker_kind=kind)
    kept, copies = [], []
    for epoch in range(3):
        for micro in source.batches(epoch):
            kept.append(micro.batch)
            copies.append({name: tensor.clone() for name, tensor in micro.batch.items()})
    assert all(
        torch.equal(batch[name], other[name])
        for batch, other in zip(kept, copies, strict=True)
        for name in batch
    )
    source.close()


@pytest.mark.parametrize("num", [1, 2, 3, 8])
@pytest.mark.parametrize("batch_size", [1, 7, 8, 9, 64, 65])
def test_slices_of_a_batch_make_the_batch(num, batch_size):
    records = {"image": [jpeg(number) for number in range(65)], "label": np.arange(65)}
    path = write_store("x.h5", records, IMAGE_FIELDS)
    alone, shared = (
        hdf5_source(path, context=make_context(batch_size, num_workers=n)) for n in (0, num)
    )
    assert micros(shared) == micros(alone)
    alone.close()
    shared.close()
