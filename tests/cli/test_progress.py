import numpy as np
import pytest

from framework.cli.run_ranks import show_packing
from framework.config.prepare_data import default_options, packing_of, preparation_of
from framework.errors import ConfigError
from framework.input.arrays import ArraysInput
from framework.store.folder_store import FolderWriter
from framework.store.hdf5_store import HDF5Writer

FOLDER = {"_target_": "framework.store.folder_store.FolderWriter", "path": "x", "jpeg": 5}
HDF5 = {"_target_": "framework.store.hdf5_store.HDF5Writer"}


def packing(output=HDF5, writer=HDF5Writer):
    np.savez("x.npz", image=np.zeros((4, 1, 2, 2), np.uint8), label=np.arange(4) % 2)
    source, configured = ArraysInput("x.npz", None), {"input": {"path": "y"}, "output": output}
    return packing_of(source, default_options(), writer, "x.h5", configured)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"qualty": 3}, "C102]: pack.qualty = 3: no such key (did you mean 'pack.quality'?)"),
        ({"quality": "high"}, "C101]: pack.quality = high: must be a whole number, or null; "),
        ({"parts": True}, "C101]: pack.parts = True: must be a whole number; "),
        ({"size": ["a", 2]}, "must be a list of whole numbers, or null ([height, width]: "),
    ],
)
def test_a_key_of_pack_that_cannot_be_is_named(change, words):
    with pytest.raises(ConfigError) as caught:
        preparation_of({**default_options(), **change})
    assert words in str(caught.value)


def test_a_folder_is_packed_through_hdf5():
    through, alone = packing(FOLDER, FolderWriter), packing()
    assert (through.suffix, through.make_part) == (".h5", HDF5Writer)
    assert (alone.suffix, alone.make_part) == (".h5", None)


def test_every_key_but_the_path_decides_whether_finished_jobs_are_kept():
    output = {key: FOLDER[key] for key in ("_target_", "jpeg")}
    assert packing(FOLDER, FolderWriter).configured == {"input": {"path": "y"}, "output": output}


def test_the_last_lines_say_what_was_made(capsys):
    show_packing(packing(), 0)
    *_, labels, last = capsys.readouterr().err.splitlines()
    assert labels == "labels: numbers as they are, 0 to 1"
    assert last.startswith("packed 4 records into x.h5: ")
