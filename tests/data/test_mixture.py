from contextlib import closing

import pytest
import torch

from framework.data.mixture import SourceCounter, mixture_source
from framework.errors import ConfigError
from tests.conftest import make_context, make_records, write_store
from tests.contract.cases import micros


@pytest.fixture
def paths():
    """Write a store of 60 records and one of 20, and return their paths."""
    return {
        "web": write_store("web.h5", make_records(60)),
        "books": write_store("books.lmdb", make_records(20)),
    }


def records_of(source, epoch=0):
    with closing(source):
        return torch.tensor([i for batch, *_ in micros(source, epoch) for i in batch["index"]])


def make(paths, weights=None, temperature=1.0, **options):
    return mixture_source(paths, weights, temperature, context=make_context(**options))


def test_without_weights_every_record_comes_once(paths):
    source = make(paths)
    assert records_of(source).sort().values.tolist() == list(range(80))
    assert source.content() == {"from_web": (60.0, 80.0), "from_books": (20.0, 80.0)}
    assert source.content() == {"from_web": (0.0, 0.0), "from_books": (0.0, 0.0)}


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("epoch", [0, 3])
def test_stores_have_their_share_of_an_epoch_exactly(paths, seed, epoch):
    records = records_of(make(paths, {"web": 1, "books": 3}, seed=seed), epoch)
    counts = torch.bincount(records, minlength=80)
    assert (int(counts[:60].sum()), int(counts[60:].sum())) == (20, 60)
    assert counts[:60].max() == 1
    assert set(counts[60:].tolist()) == {3}


def test_a_temperature_makes_small_stores_more_frequent(paths):
    records = records_of(make(paths, temperature=1e9))
    assert (int((records < 60).sum()), int((records >= 60).sum())) == (40, 40)


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_share_the_epoch(paths, world_size):
    alone = records_of(make(paths, {"web": 1, "books": 1}, batch_size=6))
    parts = []
    for rank in range(world_size):
        options = {"batch_size": 6, "rank": rank, "world_size": world_size}
        source = make(paths, {"web": 1, "books": 1}, **options)
        with closing(source):
            micro = source.batches(0)
            parts += [i for part in micro if part.weight for i in part.batch["index"].tolist()]
    assert sorted(parts) == sorted(alone.tolist())


def test_an_epoch_continues_in_the_middle(paths):
    source = make(paths, {"web": 1, "books": 1})
    with closing(source):
        assert micros(source, 2, 7) == micros(source, 2)[7:]


def test_validation_has_every_record_once_of_one_store_or_several(paths):
    several = make(paths, {"web": 1, "books": 9}, training=False)
    assert records_of(several).tolist() == list(range(80))
    assert len(records_of(make(paths["web"], training=False))) == 60


@pytest.mark.parametrize(
    "weights", [{"web": 1}, {"web": 1, "book": 1}, {"web": -1, "books": 1}, {"web": 0, "books": 0}]
)
def test_weights_that_do_not_fit_the_stores_are_refused(paths, weights):
    with pytest.raises(ConfigError, match=r"C203.*each of web, books"):
        make(paths, weights)


def test_options_that_would_be_ignored_are_refused(paths):
    with pytest.raises(ConfigError, match=r"C203.*would ignore data\.temperature=2"):
        make(paths, {"web": 1, "books": 1}, 2)
    with pytest.raises(ConfigError, match=r"C203.*order=full"):
        make(paths, {"web": 1, "books": 1}, block=4)


def test_records_are_counted_by_their_store():
    counter = SourceCounter(["a", "b"], torch.tensor([0, 2, 5]))
    counter.add({"index": torch.tensor([0, 4, 2])})
    assert counter.take() == {"from_a": (1.0, 3.0), "from_b": (2.0, 3.0)}
