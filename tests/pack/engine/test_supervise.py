import os

import pytest

from framework.errors import DataError, ResourceError
from framework.pack.engine.supervise import JobSupervisor
from framework.store.hdf5_store import HDF5Writer
from framework.system.durable import remove_leftovers
from tests.input.inputs import Input
from tests.pack.engine.test_jobs import make_work


def supervised(source, num_workers=2, skip=False):
    """Run all jobs. Return what they gave, and how many items were reported as progress."""
    work, moved = make_work(source, skip), []
    try:
        with JobSupervisor(work, HDF5Writer, num_workers, moved.append, None) as supervisor:
            done = list(supervisor.do(range(work.plan.num_jobs)))
    finally:
        for place in (work.journal.folder, work.journal.files):
            remove_leftovers(place)  # as the run does: of processes that were ended
    return sorted(done, key=lambda job: job.number), sum(step.items for step in moved)


def test_progress_ends_at_all_items_also_where_work_was_lost():
    plain, _ = supervised(Input(bad=[1000]), 0, skip=True)
    done, items = supervised(Input(deadly=[1000], spared=os.getpid()), skip=True)
    assert items == 4000
    assert [job.sha256 for job in done] == [job.sha256 for job in plain]
    assert [bad.item for job in done for bad in job.bad] == [1000]


def test_deadly_items_in_several_jobs_are_each_found():
    deadly = [0, 1, 900, 901, 3999]
    done, _ = supervised(Input(deadly=deadly, spared=os.getpid()), 3, skip=True)
    assert [bad.item for job in done for bad in job.bad] == deadly


def test_a_deadly_item_is_an_error_if_none_may_be_skipped():
    with pytest.raises(
        DataError, match=r"D154.*item 7: kills the process that reads it \(signal 9\)"
    ):
        supervised(Input(deadly=[7], spared=os.getpid()))


def test_a_job_that_kills_but_none_of_its_items_alone_is_given_up():
    class Heavy(Input):
        def read(self, start, stop):
            if stop - start > 1 and os.getpid() != self.spared:
                os.kill(os.getpid(), 9)
            return super().read(start, stop)

    with pytest.raises(ResourceError, match=r"R153.*no item alone is the cause"):
        supervised(Heavy(spared=os.getpid()))
