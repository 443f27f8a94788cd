"""Faults while packing, P1 to P25 of docs/faults.md (which names others), by the real command."""

import io
import json
import os
import random
import re
import shutil
import signal
import time
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from PIL import Image

from framework.store.open_store import open_store
from tests.cli.command import paceline
from tests.conftest import children_of_this_process
from tests.faults import forked

FORMATS = [("hdf5", "x.h5"), ("lmdb", "x.lmdb")]


def png(seed=0, side=24):
    """Return a PNG of noise."""
    return cv2.imencode(
        ".png", np.random.default_rng(seed).integers(0, 256, (side, side, 3), np.uint8)
    )[1].tobytes()


def put(path, data):
    """Write a file at ``path``, str or bytes, and make its folders."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)
    return path


def folder(root="images", count=4):
    """Write images of noise in two classes. Return the word of the command."""
    for number in range(count):
        put(f"{root}/{'ab'[number % 2]}/{number}.png", png(number))
    return f"input.path={root}"


def arrays(count=3000):
    """Write records of 3 kB each, and return the words that pack them in about half a second."""
    images = np.random.default_rng(0).integers(0, 256, (count, 3, 32, 32), np.uint8)
    np.savez("arrays.npz", image=images, label=np.arange(count) % 3)
    return ["input=arrays", "input.path=arrays.npz"]


def keys(path):
    store = open_store(path)
    names = [store.key(index) for index in range(store.manifest.num_records)]
    store.close()
    return names


def images(path):
    store = open_store(path)
    encoded = [bytes(own) for own in store.read(torch.arange(store.manifest.num_records))["image"]]
    store.close()
    return encoded


def bad(path):
    """Return the names in the list of bad items, and the numbers of their errors."""
    return {
        Path(line["name"]).name: line["error"]
        for line in map(json.loads, Path(f"{path}.bad.jsonl").read_text().splitlines())
    }


def same(first, second):
    return Path(first).read_bytes() == Path(second).read_bytes()


# -------------------------------------------------------------------------- P3, P4: killed, stopped


def test_packing_ends_at_once_at_a_signal_and_the_same_command_resumes():
    number = signal.SIGINT
    words = ["pack", *arrays(), "workers=2", "output.path=x.h5"]
    draw, before = random.Random(number), children_of_this_process()
    for _ in range(2):
        with forked.Command(*words) as command:
            time.sleep(draw.uniform(0.02, 0.5))
            os.kill(command.pid, number)
            done = command.wait()
            assert done.code in (0, 128 + number), done
            assert "Traceback" not in done.err
            assert children_of_this_process() <= before
    assert paceline(*words).code == 0
    assert paceline(*words[:-1], "output.path=straight.h5").code == 0
    assert same("x.h5", "straight.h5")
    assert not list(Path().glob("x.h5.*"))


# ----------------------------------------------------------------------------- P6 to P12: bad files


def frames(kind):
    """Return a file of four images."""
    images = [Image.fromarray(np.full((8, 8, 3), 60 * number, np.uint8)) for number in range(4)]
    file = io.BytesIO()
    images[0].save(file, kind, save_all=True, append_images=images[1:])
    return file.getvalue()


def test_p6_p9_p12_files_that_are_not_one_image_are_listed():
    """A name says nothing: the first bytes of a file decide."""
    folder()
    put("images/a/really.jpg", png())
    wrong = {
        "empty.jpg": b"",
        "zeros.jpg": bytes(5000),
        "text.jpg": b"hello",
        "page.png": b"<!DOCTYPE html><html>404</html>",
        "zip.png": b"PK\x03\x04" + bytes(100),
        "gif.jpg": frames("gif"),
        **{f"{kind}.{kind}": frames(kind) for kind in ("gif", "png", "webp", "tiff")},
    }
    for name, data in wrong.items():
        put(f"images/b/{name}", data)
    words = ["pack", "input.path=images", "output.path=x.h5", "pack.encode=raw", "pack.resize=8"]
    assert forked.is_one_line(paceline(*words), "D106", 3, "images/b/")
    assert paceline(*words, "pack.on_error=skip").code == 8
    assert bad("x.h5") == dict.fromkeys(wrong, "D106")
    assert len(keys("x.h5")) == 5


# ----------------------------------------------------------------------------- P13: may not be read


@forked.needs_root
def test_p13_a_file_without_permission_is_named_or_left_out():
    words = ["pack", folder(), "output.path=x.h5"]
    Path("images/a/0.png").chmod(0)
    done = forked.paceline(*words, before=forked.no_privileges)
    assert forked.is_one_line(done, "D101", 3, "images/a/0.png", "Permission denied")
    assert forked.paceline(*words, "pack.on_error=skip", before=forked.no_privileges).code == 8
    assert bad("x.h5") == {"0.png": "D101"}


@forked.needs_strace
def test_p13_a_file_on_a_bad_disk_is_named():
    words = ["pack", folder(), "output.path=x.h5"]
    with forked.traced(
        *words, options=("-P", os.path.abspath("images/b/1.png"), "-e", "inject=read:error=EIO")
    ) as command:
        assert forked.is_one_line(command.wait(), "D101", 3, "images/b/1.png", "Input/output error")


# ---------------------------------------------------------------------------------- P14, P15: names

NAMES = [
    *("é.png".encode(), "e\u0301.png".encode(), "😀.png".encode(), "\u202egnp.png".encode()),
    *(b"new\nline.png", b"\xff\xfe.png", b"x" * 251 + b".png", b" spaces, = and [x] {y}.png"),
    *(b"\x1b[31mred.png", b"case.png", b"CASE.png"),
    b"/".join([b"deep" * 50] * 4) + b"/long.png",  # more than an LMDB key may be
]


@pytest.mark.parametrize(("output", "path"), FORMATS)
def test_p14_p15_every_name_is_kept_and_none_takes_another_ones_place(output, path):
    for number, name in enumerate(NAMES):
        put(b"images/a/" + name, png(number))
        put(b"images/b/" + name, png(number + 100))
    done = paceline("pack", "input.path=images", f"output={output}", f"output.path={path}")
    assert done.code == 0, done.err
    assert sorted(map(os.fsencode, keys(path))) == sorted(
        label + name for label in (b"a/", b"b/") for name in NAMES
    )
    assert sorted(images(path)) == sorted(
        png(number + more) for number in range(len(NAMES)) for more in (0, 100)
    )


def test_p15_a_name_in_an_error_cannot_command_the_terminal():
    folder()
    put(b"images/a/\x1b[31m\xff\nred.png", b"")
    done = paceline("pack", "input.path=images", "output.path=x.h5")
    assert forked.is_one_line(done, "D106", 3, "red.png")
    assert done.last_line.isprintable()


# --------------------------------------------------------------------------------- P16: a full disk


# The first "write" is the owner's name in the lock, which a full disk may refuse.
NO = {"h5": ["write 6", "write 2", "write 31"], "lmdb": ["pwrite64 1", "write 3"]}
BOTH = ["fsync 4", "rename 3"]


@forked.needs_strace
@pytest.mark.parametrize("error", ["ENOSPC", pytest.param("EIO", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("output", "path"), FORMATS)
def test_p16_a_disk_that_says_no_at_any_call_leaves_the_old_store(output, path, error):
    words = ["pack", folder(), f"output={output}", f"output.path={path}"]
    assert paceline(*words).code == 0
    before = Path(path).read_bytes()
    put("images/a/new.png", png(77))
    calls = NO[path[2:]][:1] if error == "ENOSPC" else [*NO[path[2:]], *BOTH]
    for call, when in map(str.split, calls):
        with forked.traced(
            *words, options=("-e", f"inject={call}:error={error}:when={when}")
        ) as command:
            assert forked.is_one_line(command.wait(), "R101", 5, path), (call, when)
        assert Path(path).read_bytes() == before
        assert not [p for p in Path().rglob("*") if ".tmp." in p.name]
        shutil.rmtree(f"{path}.parts", ignore_errors=True)  # or the next one would have less to do
    assert paceline(*words).code == 0
    assert len(keys(path)) == 5


# ------------------------------------------------------------------------- P22, P23: few, any order


def test_p22_nothing_to_pack_is_refused_and_no_store_is_made():
    put("images/a/x.txt", b"")
    done = paceline("pack", "input.path=images", "output.path=x.h5")
    assert forked.is_one_line(done, "D110", 3, "images")
    assert not list(Path().glob("x.h5*"))


def shuffled():
    """Make folders list their names in random order."""
    real = os.scandir

    class Entries(list):
        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    def scandir(*arguments):
        entries = Entries(real(*arguments))
        random.shuffle(entries)
        return entries

    os.scandir = scandir


def test_p23_workers_and_the_order_of_folders_change_no_byte():
    words = ["pack", folder(count=100), "pack.encode=raw", "pack.resize=20"]
    for workers in (1, 3):
        own = (f"workers={workers}", f"output.path={workers}.h5")
        assert forked.paceline(*words, *own, before=shuffled).code == 0
    assert same("1.h5", "3.h5")


# ----------------------------------------------------------------------- P25: what reaches the disk


def whole_calls(trace):
    """Yield the calls of strace's log at their ends, those that it split joined again."""
    begun = {}
    for pid, line in (line.split(maxsplit=1) for line in trace.splitlines()):
        if line.endswith("<unfinished ...>"):
            begun[pid] = line.removesuffix("<unfinished ...>")
        elif line.startswith("<... "):
            yield begun.pop(pid, "") + line.split("resumed>", 1)[1]
        else:
            yield line


def renames_not_durable(trace):
    """Return the renames to a final name that are not durable, and the number of all of them.

    A rename is durable if its source was flushed to the disk before it, and its folder after it.
    """
    calls = [line for line in whole_calls(trace) if "= 0" in line]
    synced = [
        (number, match[1])
        for number, line in enumerate(calls)
        if (match := re.match(r"f(?:data)?sync\(\d+<(.*)> *\)", line))
    ]
    wrong, count, moved = [], 0, {}
    for number, line in enumerate(calls):
        names = re.findall(r'"([^"]*)"', line) if line.startswith("rename") else []
        if not names or ".tmp." in names[-1]:  # on its way out
            continue
        count += 1
        source, target = map(os.path.abspath, names[:2])
        moved[target] = source
        before = {path for at, path in synced if at < number}
        after = {path for at, path in synced if at > number}
        if not before & {source, moved.get(source)} or os.path.dirname(target) not in after:
            wrong.append(line)
    return wrong, count


@forked.needs_strace
@pytest.mark.parametrize(
    ("output", "path", "one_file"), [("hdf5", "x.h5", "true"), ("lmdb", "x.lmdb", "false")]
)
def test_p25_what_has_its_name_was_on_the_disk_before(output, path, one_file):
    words = [
        *("pack", *arrays(2000), f"output={output}", f"output.path={path}"),
        *(f"pack.one_file={one_file}", "workers=2"),
    ]
    with forked.traced(
        *words, options=("-e", "trace=fsync,fdatasync,rename,renameat,renameat2")
    ) as command:
        assert command.wait().code == 0
    wrong, count = renames_not_durable(Path("trace.txt").read_text())
    assert count > 5
    assert wrong == []


# ----------------------------------------------------------------------------------------- nonsense


@pytest.mark.parametrize(
    ("words", "number", "code"),
    [
        pytest.param(["output.path=file/x.h5"], "R101", 5, id="below a file"),
        pytest.param([f"output.path={'x' * 300}"], "R101", 5, id="too long a name"),
        pytest.param(["output.path=mine"], "D115", 3, id="folder of the user"),
        pytest.param(["output.path=images/a/0.png"], "D115", 3, id="file of the user"),
    ],
)
def test_packing_refuses_a_wrong_command_and_destroys_nothing(words, number, code):
    put("mine/precious.txt", b"mine")
    Path("file").write_text("")
    done = paceline("pack", folder(), *words)
    assert forked.is_one_line(done, number, code)
    assert Path("mine/precious.txt").read_bytes() == b"mine"
    assert Path("images/a/0.png").read_bytes() == png(0)
    assert {name for name in os.listdir() if name != "outputs"} == {"mine", "file", "images"}


def test_any_name_is_good_for_a_store():
    for path in ("sub/a=b ü 😀 {x}[y],.h5", os.fsdecode(b"\xff.h5")):
        assert paceline("pack", folder(), f'output.path="{path}"').code == 0
        assert len(keys(path)) == 4


def test_an_output_that_is_a_link_is_refused_and_nothing_changes():
    put("large/x.h5", b"")
    os.symlink("large/x.h5", "x.h5")
    assert forked.is_one_line(paceline("pack", folder(), "output.path=x.h5"), "D115", 3, "a link")
    assert os.readlink("x.h5") == "large/x.h5"
    assert os.listdir("large") == ["x.h5"]
    assert not Path("large/x.h5").read_bytes()


@forked.needs_root
def test_packing_names_a_read_only_output():
    Path("closed").mkdir()
    words = ["pack", folder(), "output.path=closed/x.h5"]
    done = forked.paceline(*words, before=lambda: forked.read_only("closed"))
    assert forked.is_one_line(done, "R101", 5, "closed/x.h5", "Read-only file system")


@forked.needs_root
def test_a_folder_in_which_nothing_may_be_written_is_one_line():
    assert paceline("pack", folder(), "output.path=x.h5").code == 0
    here = os.getcwd()
    done = forked.paceline(
        "inspect", "x.h5", before=lambda: (forked.read_only(here), os.chdir(here))
    )
    assert forked.is_one_line(done, "R101", 5, "Read-only file system")


def test_packing_a_store_into_itself_leaves_it_as_it_was():
    assert paceline("pack", folder(), "output.path=x.h5").code == 0
    assert paceline("pack", "input=store", "input.path=x.h5", "output.path=x.h5").code == 0
    assert images("x.h5") == [png(number) for number in (0, 2, 1, 3)]
    shutil.copy("x.h5", "y.h5")
    assert paceline("pack", "input=store", "input.path=[x.h5,y.h5]", "output.path=x.h5").code == 0
    assert len(keys("x.h5")) == 8
