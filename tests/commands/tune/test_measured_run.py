import pytest

from framework.cli.allowed import Grant
from framework.cli.compose_config import composed
from framework.commands.probe import Probe
from framework.commands.tune import measured_run as module
from framework.commands.tune.measured_run import visit
from framework.order import Order
from framework.train.metrics import Progress
from tests.conftest import make_records, write_store

NOBODY = Grant(typed=False, exported="")


@pytest.fixture(scope="module")
def config():
    return composed(["data=synthetic", "batch_size=8"], NOBODY)[0]


@pytest.mark.parametrize(("batch_size", "seconds"), [(8, 0.08), (1437, 1e-4)])
def test_a_visit_has_a_rate_however_slow_steps_are(config, batch_size, seconds):
    found = visit({**config, "batch_size": batch_size}, (), 0, seconds, 0.0)
    assert found.rate > 0
    assert found.step_s > 0


def test_each_visit_reads_in_an_order_of_its_own(monkeypatch):
    epochs = []
    shares = Order.shares
    monkeypatch.setattr(
        Order,
        "shares",
        lambda self, epoch, start=0: epochs.append(epoch) or shares(self, epoch, start),
    )
    store = write_store("a.h5", make_records(60))
    words = [f"data.train={store}", "batch_size=60", "prepare=null"]
    config = composed(words, NOBODY)[0]
    visit(config, (), 7, 0.01, 0.0)
    assert min(epochs) == 7
    assert len(set(epochs)) > 1


def test_records_are_counted_with_short_last_batches(config):
    probe = Probe(config, ())
    counted = module._Counted(Order(num_records=10, batch_size=4), probe, 1.0, 0.0)
    progress = Progress()
    counted.follow(progress, 3)
    seen = []
    for step in (1, 2, 3):
        progress.epoch_step = step
        seen.append(counted._records())
    progress.epoch, progress.epoch_step = 4, 1
    assert [*seen, counted._records()] == [4, 8, 10, 14]
    probe.close()
