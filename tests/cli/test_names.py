"""Names that become paths inside something of ours stay inside it."""

import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from framework.commands.tune.recipe_writer import check_name
from framework.contracts.records import Field, Manifest
from framework.errors import ConfigError, DataError
from framework.store.folder_store import FolderWriter
from tests.cli.command import paceline

OUT = [
    "..",
    ".",
    "../x",
    "../../etc/x",
    "/etc/x",
    "//etc/x",
    "a/../../x",
    "a/..",
    "./x",
    "a/b",
    "~/x",
    "$HOME/x",
    "..\\x",
    "C:\\x",
    "a\0b",
    "a\nb",
    "x\n",
    "-rf",
    "\x1b[2Jx",
    "..%2fx",
    "\u2024\u2024/x",
    "x" * 5000,
]
WIDE = {"image": Field("uint8", (3, 8, 8)), "label": Field("int64", ())}


@pytest.mark.parametrize(
    "name", ["Größe (1)", "ä", "a&b", "it's", "x~#!", "par(1", "日本", 'a"b c(', "a\\ü"]
)
def test_a_folder_may_have_any_name(name, tmp_path):
    (tmp_path / name).mkdir()
    np.savez(tmp_path / name / "x.npz", image=np.zeros((4, 1, 8, 8), np.uint8))
    done = paceline("pack", "input=arrays", f"input.path={name}/x.npz", f"output.path={name}/y.h5")
    assert done.code == 0, done.err
    assert (tmp_path / name / "y.h5").exists()


@pytest.mark.parametrize("name", ["", *OUT], ids=lambda name: ascii(name)[:20])
def test_no_recipe_is_tuned_under_a_name_that_leads_out(name):
    with pytest.raises(ConfigError, match="C197") as caught:
        check_name(name, ["digits"])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["", *OUT], ids=lambda name: ascii(name)[:20])
def test_a_class_becomes_a_folder_inside_the_folder_or_is_refused(name):
    os.mkdir("box")
    writer = FolderWriter("box/out", fields=WIDE, num_records=1)
    writer.write({"image": np.zeros((1, 3, 8, 8), np.uint8), "label": np.zeros(1, np.int64)}, ["a"])
    with suppress(DataError):  # any other error fails
        writer.close(Manifest(1, WIDE, [name]))
    writer.abort()
    assert set(os.listdir("box")) <= {"out"}
    assert os.listdir(".") == ["box"]
    assert all(path.parent == Path("box/out") for path in Path("box/out").glob("*"))
