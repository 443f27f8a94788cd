import pytest

from framework.cli.allowed import Grant
from framework.cli.compose_config import composed
from framework.commands.tune.measured_run import records_taken, visit
from framework.order import Order
from framework.train.metrics import Progress
from tests.conftest import make_records, write_store

NOBODY = Grant(typed=False, exported="")


@pytest.fixture(scope="module")
def config():
    return composed(["data=synthetic", "batch_size=8"], NOBODY)[0]


@pytest.mark.parametrize(("batch_size", "seconds"), [(8, 0.08), (1437, 1e-4)])
def test_a_visit_of_slow_steps_has_a_rate(config, batch_size, seconds):
    measured = visit({**config, "batch_size": batch_size}, (), 0, seconds, 0.0)
    assert measured.rate > 0
    assert measured.step_s > 0


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


@pytest.mark.parametrize(
    ("epoch", "epoch_step", "records"), [(3, 1, 4), (3, 2, 8), (3, 3, 10), (4, 1, 14)]
)
def test_records_are_counted_with_short_last_batches(epoch, epoch_step, records):
    order = Order(num_records=10, batch_size=4)
    progress = Progress(epoch=epoch, epoch_step=epoch_step)
    assert records_taken(order, progress, 3) == records
