from pathlib import Path

import numpy as np
import pytest

from framework.store.folder_store import FolderStore
from framework.store.identity import PIECE_BYTES, PIECES, sampled_digest
from framework.store.parquet_store import ParquetStore
from framework.store.tar_store import TarStore
from tests.contract.cases import jpeg, write_parquet, write_tar


def test_a_digest_samples_names_sizes_and_contents():
    content = np.random.default_rng(0).bytes(2 * PIECES * PIECE_BYTES)
    changes = {
        "same": content,
        "first": b"x" + content[1:],
        "last": content[:-1] + b"x",
        "longer": content + b"x",
    }
    for name, data in changes.items():
        Path(name).write_bytes(data)
    assert len({sampled_digest([name]) for name in changes}) == len(changes)
    assert sampled_digest(["same"], ["a"]) != sampled_digest(["same"], ["b"])
    assert sampled_digest(["same"] * 1000) != sampled_digest(["same"] * 1001)
    assert sampled_digest(["gone"])  # whoever reads the file says so


def _folder(path, first):
    for number, name in enumerate("ab", first):
        Path(path, name).mkdir(parents=True)
        Path(path, name, "1.jpg").write_bytes(jpeg(number))
    return FolderStore(path)


def _tar(path, first):
    members = [(f"{number}.jpg", jpeg(first + number)) for number in range(2)]
    members += [(f"{number}.cls", b"%d" % number) for number in range(2)]
    return TarStore(write_tar(f"{path}.tar", members), keep=False)


def _parquet(path, first):
    records = {"image": [jpeg(first), jpeg(first + 1)], "label": [0, 1]}
    return ParquetStore(str(write_parquet(f"{path}.parquet", records)))


@pytest.mark.parametrize("make", [_folder, _tar, _parquet])
def test_files_that_were_not_packed_have_a_digest(make):
    digests = [make(path, first).manifest.digest for path, first in (("x", 0), ("y", 0), ("z", 1))]
    assert digests[0] == digests[1] != digests[2]
