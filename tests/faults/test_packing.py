"""Faults while packing, P1 to P25 of docs/faults.md (which names others), by the real command."""

import io
import json
import os
import random
import re
import shutil
import signal
import socket
import threading
import time
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from PIL import Image

from framework.main import run
from framework.order.batches import spread
from framework.pack.jobs import NUM_SIZE_SAMPLES
from framework.store.open_store import open_store
from tests.cli.command import paceline
from tests.conftest import children_of_this_process
from tests.faults import files, forked

FORMATS = [("hdf5", "x.h5"), ("lmdb", "x.lmdb")]


def png(seed=0, side=24):
    """Return a PNG of noise."""
    return cv2.imencode(
        ".png", np.random.default_rng(seed).integers(0, 256, (side, side, 3), np.uint8)
    )[1].tobytes()


def jpeg(seed=0, side=48):
    return cv2.imencode(
        ".jpg", np.random.default_rng(seed).integers(0, 256, (side, side, 3), np.uint8)
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
    encoded = [
        bytes(value) for value in store.read(torch.arange(store.manifest.num_records))["image"]
    ]
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


# ----------------------------------------------------------------------------- P5 to P12: bad files


@pytest.mark.parametrize("words", [["pack.encode=keep"], ["pack.encode=raw", "pack.size=[24,24]"]])
def test_p5_a_truncated_image_is_never_packed_whatever_becomes_of_it(words):
    for name, data in (("jpg", jpeg()), ("png", png())):
        put(f"images/a/good.{name}", data)
        for part in range(10, 100, 20):
            put(f"images/a/{part}.{name}", data[: len(data) * part // 100])
    done = paceline("pack", "input.path=images", "output.path=x.h5", "pack.on_error=skip", *words)
    assert done.code == 8, done
    assert keys("x.h5") == ["a/good.jpg", "a/good.png"]
    assert set(bad("x.h5").values()) == {"D106"}
    assert len(bad("x.h5")) == 10
    assert forked.is_one_line(
        paceline("pack", "input.path=images", "output.path=y.h5", *words), "D106", 3, "a/10.jpg"
    )


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


def test_p7_what_no_decoder_can_tell_is_kept_and_found_when_it_changes_later():
    path = "x.h5"
    data = bytearray(jpeg())
    data[len(data) // 2] ^= 1  # in the entropy-coded pixels
    put("images/a/flipped.jpg", data)
    assert paceline("pack", "input.path=images", f"output.path={path}").code == 0
    assert images(path) == [bytes(data)]
    stored = bytearray(Path(path).read_bytes())
    stored[stored.find(data) + 300] ^= 1
    Path(path).write_bytes(stored)
    done = paceline("verify", path)
    assert forked.is_one_line(done, "D156", 3)
    assert f"{path}: record 0 (a/flipped.jpg): does not match its CRC32" in done.out


def frames(kind):
    """Return a file of four images."""
    images = [Image.fromarray(np.full((8, 8, 3), 60 * number, np.uint8)) for number in range(4)]
    file = io.BytesIO()
    images[0].save(file, kind, save_all=True, append_images=images[1:])
    return file.getvalue()


def test_p11_a_bomb_is_refused_before_it_takes_memory():
    put("images/a/bomb.png", files.png_bomb())
    before = int(re.search(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text())[1])
    with forked.Command(
        "pack", "input.path=images", "output.path=x.h5", "pack.encode=raw"
    ) as command:
        highest = 0
        while command.process.exitcode is None:
            match = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{command.pid}/status").read_text())
            highest = max(highest, int(match[1]) if match else 0)
        assert forked.is_one_line(command.wait(), "D106", 3, "bomb.png", "64000000")
    assert highest - before < 100_000, f"{highest - before} kB more"


class Canary:
    def __reduce__(self):
        return os.mkdir, ("executed",)


def test_p12_a_pickle_inside_an_array_file_is_never_executed():
    np.savez("x.npz", x=np.array([Canary()], object))
    done = paceline("pack", "input=arrays", "input.path=x.npz", "output.path=x.h5")
    assert forked.is_one_line(done, "D112", 3, "x.npz")
    assert not Path("executed").exists()


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
    "é.png".encode(),
    "e\u0301.png".encode(),
    "😀.png".encode(),
    "\u202egnp.png".encode(),
    b"new\nline.png",
    b"\xff\xfe.png",
    b"x" * 251 + b".png",
    b" spaces, = and [x] {y}.png",
    b"\x1b[31mred.png",
    b"case.png",
    b"CASE.png",
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


def misjudged(count=100):
    """Write a folder whose sampled images are small and whose other images are large."""
    small = set(spread(count, NUM_SIZE_SAMPLES).tolist())
    for number in range(count):
        put(f"images/a/{number:03d}.png", png(number, 2 if number in small else 100))
    return "input.path=images"


@forked.needs_root
def test_p16_a_disk_that_is_full_in_the_middle_costs_nothing_but_time():
    path = "x.h5"
    words = ["pack", misjudged(), f"output.path=disk/{path}"]
    Path("disk").mkdir()
    other = folder("other")

    def fill():
        forked.small_disk("disk", "2m")
        assert run(["pack", other, *words[2:]]) == 0
        before = Path(f"disk/{path}").read_bytes()
        assert run(words) == 5
        assert Path(f"disk/{path}").read_bytes() == before
        assert sorted(os.listdir("disk")) == [path, f"{path}.parts"]
        assert not [p for p in Path("disk").rglob("*") if ".tmp." in p.name]
        forked.mount("tmpfs", "disk", "tmpfs", forked.MS_REMOUNT, "size=64m")

    done = forked.paceline(*words, before=fill)
    assert done.code == 0, done.err
    assert re.search(r"error\[R101\]: disk/.*No space left.*the same command resumes", done.err)
    assert "packed 100 records" in done.err


@forked.needs_root
def test_p16_too_small_a_disk_is_refused_before_anything_is_written():
    Path("disk").mkdir()
    done = forked.paceline(
        "pack",
        *arrays(1000),
        "output.path=disk/x.h5",
        before=lambda: forked.small_disk("disk", "1m"),
    )
    assert forked.is_one_line(done, "R151", 5, "disk/x.h5", "are missing")


NO = {"h5": ["write 5", "write 1", "write 30"], "lmdb": ["pwrite64 2", "write 2"]}
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


# -------------------------------------------------------------------- P18: two packers at one place


def test_p18_of_two_packers_started_together_exactly_one_packs():
    words = ["pack", *arrays(), "workers=0", "output.path=x.h5"]
    with forked.Command(*words) as first, forked.Command(*words) as second:
        forked.wait_for(lambda: Path("x.h5.lock").exists(), "a lock")
        outcomes = [first.wait(), second.wait()]
    # two zeros: one packed after the other
    assert sorted(done.code for done in outcomes) in ([0, 5], [0, 0])
    for done in outcomes:
        assert done.code == 0 or forked.is_one_line(done, "R150", 5, "x.h5.lock", "process ")
    assert os.path.exists("x.h5")
    assert not list(Path().glob("x.h5.*"))


# --------------------------------------------------------------------------------------- P19: trees


def test_p19_links_and_special_files_are_passed_over_and_never_opened():
    put("outside/secret.png", png(9))
    words = ["pack", folder(), "output.path=x.h5"]
    os.symlink("images", "images/a/loop.png")
    os.symlink("nowhere", "images/a/dangling.png")
    os.symlink("../../outside/secret.png", "images/a/out.png")
    os.symlink("../../outside", "images/outside")
    os.mkfifo("images/a/pipe.png")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("images/a/socket.png")
        done = paceline(*words)
    assert done.code == 0, done.err
    assert sorted(keys("x.h5")) == ["a/0.png", "a/2.png", "b/1.png", "b/3.png"]
    assert "6 links and special files left out" in open_store("x.h5").manifest.source


# ----------------------------------------------------------------------- P21: an input that changes


def test_p21_what_is_packed_while_it_changes_is_one_of_the_files_whole():
    words = ["pack", folder(count=80), "output.path=x.h5", "pack.on_error=skip", "workers=2"]
    versions = [png(seed, side) for seed, side in ((1, 20), (2, 30), (3, 40))]
    stop = threading.Event()

    def rewrite():
        draw = random.Random(0)
        while not stop.is_set():
            Path(f"images/a/{2 * draw.randrange(40)}.png").write_bytes(draw.choice(versions))

    writer = threading.Thread(target=rewrite)
    writer.start()
    try:
        done = paceline(*words)
    finally:
        stop.set()
        writer.join()
    if done.code == 0:
        assert set(images("x.h5")) <= {*versions, *(png(number) for number in range(80))}
        assert paceline("verify", "x.h5").code == 0
    else:
        assert forked.is_one_line(done, "D153", 3, "changes while it is packed")


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
        "pack",
        *arrays(2000),
        f"output={output}",
        f"output.path={path}",
        f"pack.one_file={one_file}",
        "workers=2",
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
    assert forked.is_one_line(
        paceline("pack", folder(), "output.path=x.h5"), "D115", 3, "is a link"
    )
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
