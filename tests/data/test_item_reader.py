import pickle
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from framework.data.item_reader import GeneratorMoved, ItemReader
from framework.data.items import ItemForm
from framework.data.reader import Request
from framework.errors import ConfigError, DataError, UserCodeError
from framework.system.rng import generator_state, kept_generators
from tests.contract.cases import DrawingDataset, RecordsDataset, plain

CPU = torch.device("cpu")


def reader(dataset, names=None, collate=None, seed=0):
    return ItemReader(dataset, ItemForm(names, collate=collate), seed, "mine.Clips")


def batch(read, *indices, epoch=0):
    return read(Request(epoch, torch.tensor(indices), training=True))


def draws(read, *indices, epoch=0):
    return batch(read, *indices, epoch=epoch)["draws"].tolist()


def test_an_item_does_not_depend_on_the_others_of_its_batch():
    read = reader(DrawingDataset(10))
    together = draws(read, 3, 7, 3)
    assert together == [*draws(read, 3), *draws(read, 7), *draws(read, 3)]


def test_each_generator_has_other_numbers_for_another_record_epoch_and_seed():
    read = reader(DrawingDataset(10))
    rows = [*draws(read, 3, 4), *draws(read, 3, epoch=1)]
    rows += draws(reader(DrawingDataset(10), seed=1), 3)
    assert all(len(set(column)) == 4 for column in zip(*rows, strict=True))


def test_the_callers_generators_are_left_as_they_were():
    before = generator_state(CPU)
    batch(reader(DrawingDataset(10)), 1, 2)
    assert torch.equal(generator_state(CPU), before)


class Seldom(DrawingDataset):
    """Draws only for record 7."""

    def __getitem__(self, index):
        if index == 7:
            return super().__getitem__(index)
        return {**RecordsDataset.__getitem__(self, index), "draws": np.zeros(3)}


def test_items_that_draw_seldom_are_seeded_when_they_do():
    read = reader(Seldom(10))
    expected = draws(read, 2, 7)
    for indices in ((2, 7), (7, 2)):
        read = reader(Seldom(10))
        read.draws = False
        random.random()
        assert sorted(draws(read, *indices)) == sorted(expected)
        assert read.draws
    read.draws = False
    draws(read, 1, 2, 3)
    assert not read.draws


def in_thread(call):
    """Run a call in another thread. Return its finished Future: a result or an exception."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call)


def noisy(items):
    return {"x": torch.rand(len(items))}


@pytest.mark.parametrize(
    ("dataset", "collate"), [(DrawingDataset(10), None), (RecordsDataset(10), noisy)]
)
def test_another_thread_refuses_a_batch_that_draws(dataset, collate):
    call = in_thread(lambda: batch(reader(dataset, None, collate), 1))
    assert isinstance(call.exception(), GeneratorMoved)


def test_another_thread_reads_what_draws_nothing():
    read = reader(RecordsDataset(10))
    made = in_thread(lambda: batch(read, 1, 2)).result()
    assert plain(made) == plain(batch(read, 1, 2))


def test_a_step_that_draws_once_meanwhile_refuses_nothing():
    steps = iter([random.random])

    class Slow(RecordsDataset):
        def __getitem__(self, index):
            next(steps, lambda: None)()  # as another thread would, at the first attempt
            return super().__getitem__(index)

    assert in_thread(lambda: batch(reader(Slow(10)), 1)).result()["index"].tolist() == [1]


def test_generators_that_the_step_puts_back_meanwhile_are_noticed():
    class Kept(DrawingDataset):
        def __getitem__(self, index):
            with kept_generators(CPU):  # as the step does around a validation
                return super().__getitem__(index)

    call = in_thread(lambda: batch(reader(Kept(10)), 1))
    assert isinstance(call.exception(), GeneratorMoved)


def test_a_reader_that_refuses_draws_names_the_setting():
    read = reader(DrawingDataset(10))
    read.draws = False
    read.refuses = "workers.num = 0"
    with pytest.raises(
        ConfigError, match=r"C230\]: workers.num = 0: reading records 2, 7 of mine.Clips"
    ):
        batch(read, 2, 7)


def test_slices_together_are_the_whole_batch():
    read = reader(DrawingDataset(10))
    request = Request(0, torch.tensor([5, 1, 8]), training=True)
    work = read.begin(request)
    read.fill(work, 2, 3)
    read.fill(work, 0, 2)
    assert plain(read.finish(work)) == plain(read(request))


def test_it_can_be_sent_to_a_process():
    read = reader(DrawingDataset(10))
    assert draws(pickle.loads(pickle.dumps(read)), 2) == draws(read, 2)


def test_a_collate_of_the_users_gets_the_items_as_they_are():
    def collate(items):
        return torch.stack([item["image"] for item in items]), [item["label"] for item in items]

    made = batch(reader(RecordsDataset(10), ["picture", "name"], collate), 4, 2)
    assert sorted(made) == ["index", "name", "picture"]
    assert (made["picture"].shape, made["name"]) == ((2, 3, 4, 4), [1, 2])


def test_a_collate_that_draws_repeats_itself():
    read = reader(RecordsDataset(10), None, noisy)
    first = batch(read, 1, 2)["x"].tolist()
    assert batch(read, 1, 2)["x"].tolist() == first
    assert batch(read, 1, 2, epoch=1)["x"].tolist() != first


def test_a_field_called_index_is_refused():
    with pytest.raises(DataError, match=r"D230\]: record 0 of mine.Clips: has a field 'index'"):
        batch(reader([{"index": 5}]), 0)


class Bad:
    def __getitem__(self, index):
        if index == 3:
            raise LookupError("no such clip")  # LINE item
        return {"x": index}

    def __len__(self):
        return 9


def test_an_exception_names_the_users_line_and_the_record():
    line = next(
        number
        for number, text in enumerate(Path(__file__).read_text().splitlines(), 1)
        if text.endswith("# LINE item")
    )
    words = rf"U100\]: .*test_item_reader.py:{line}: in Bad.__getitem__: LookupError: no such clip "
    with pytest.raises(UserCodeError, match=words + r"\(record 3 of mine.Clips\)"):
        batch(reader(Bad()), 2, 3)


def test_an_exception_of_a_library_names_the_record():
    with pytest.raises(DataError, match=r"D233\]: record 5 of mine.Clips: IndexError"):
        batch(reader([{"x": 1}]), 5)


def test_an_exception_of_the_users_collate_names_the_records():
    def collate(items):
        raise ValueError("too long")

    with pytest.raises(UserCodeError, match=r"too long \(records 0, 1, 2, 3, ... \(5\) of"):
        batch(reader([{"x": np.zeros(1)}] * 5, None, collate), *range(5))


def test_a_collate_that_returns_no_batch_is_refused():
    with pytest.raises(DataError, match=r"D230\]: the batch of records 0 of mine.Clips: is a int"):
        batch(reader([{"x": 1}], None, len), 0)
