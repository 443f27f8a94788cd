import pickle

import pytest

from framework.contracts.records import Chunk
from framework.errors import DataError
from framework.pack.sound_rates import SoundRates
from framework.sound.sound_file import sound_header
from framework.store.kinds import as_rows
from tests.sound.test_sound_file import sound


def _chunk(*files):
    return Chunk({"a": list(map(as_rows, files))}, [f"k{number}" for number in range(len(files))])


def test_all_become_one_rate_in_any_process():
    rates = pickle.loads(pickle.dumps(SoundRates(["a"], 4000, _chunk(sound()))))
    files = rates(_chunk(sound(), sound(rate=4000)))["a"]
    assert [sound_header(file).rate for file in files] == [4000, 4000]
    assert bytes(files[1]) == sound(rate=4000)


def test_without_a_rate_the_first_one_counts():
    rates = SoundRates(["a"], None, _chunk(sound()))
    assert rates.stored_rate == 8000
    with pytest.raises(DataError, match=r"D180.*k0: a.*pack\.rate=8000"):
        rates(_chunk(sound(rate=4000)))
