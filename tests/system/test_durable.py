import multiprocessing
import os
import signal
import socket
import time
from pathlib import Path

import pytest

from framework.errors import ResourceError
from framework.system import durable
from tests.forks import forked
from tests.small_disk import small_disk

LOCK = Path("x.lock")


def _fail_inside(path, error):
    with durable.publish(path) as temporary:
        temporary.write_text("half")
        raise error


@pytest.fixture
def calls(monkeypatch):
    """Return a list that fills with the calls of fsync and replace, by the names they act on."""
    result = []
    real_sync, real_replace = os.fsync, os.replace

    def sync(descriptor):
        result.append(
            ("fsync", Path(os.readlink(f"/proc/self/fd/{descriptor}")).name.split(".tmp.")[0])
        )
        real_sync(descriptor)

    def replace(source, target):
        result.append(("replace", Path(target).name))
        real_replace(source, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", replace)
    return result


def test_a_text_file_holds_no_commands_for_a_terminal():
    durable.write_text(Path("a.txt"), "\x1b[2J\x9b\udc9b\udcff\ta\r\nb\rc\n")
    wanted = rb"\u001b[2J\u009b\udc9b" + b"\xff\ta\r\nb" + rb"\u000dc" + b"\n"
    assert Path("a.txt").read_bytes() == wanted


def test_file_then_name_then_folder_reach_the_disk_in_this_order(calls):
    Path("folder").mkdir()
    durable.write_text(Path("folder/a.txt"), "x")
    assert calls == [("fsync", "a.txt"), ("replace", "a.txt"), ("fsync", "folder")]


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt])
def test_an_error_leaves_the_old_file_and_nothing_else(error):
    Path("a.txt").write_text("old")
    with pytest.raises(error):
        _fail_inside(Path("a.txt"), error)
    assert Path("a.txt").read_text() == "old"
    assert os.listdir() == ["a.txt"]


def test_a_full_disk_is_a_resource_error_and_leaves_the_old_file():
    Path("a.txt").write_text("old")
    with small_disk(1000), pytest.raises(ResourceError, match=r"R101.*a\.txt"):
        durable.write_text(Path("a.txt"), "x" * 10_000)
    assert Path("a.txt").read_text() == "old"
    assert os.listdir() == ["a.txt"]


def test_two_writers_of_one_file_do_not_meet():
    with (
        durable.open_durable(Path("a.txt")) as first,
        durable.open_durable(Path("a.txt")) as second,
    ):
        first.write(b"first")
        second.write(b"second")
    assert Path("a.txt").read_bytes() == b"first"


def make(path, kind, text):
    """Write a file, or a folder with a file in it."""
    if kind == "file":
        Path(path).write_text(text)
    else:
        Path(path).mkdir()
        (Path(path) / "inside").write_text(text)


def text_of(path):
    return Path(path).read_text() if Path(path).is_file() else (Path(path) / "inside").read_text()


@pytest.mark.parametrize("old", ["file", "folder", None])
@pytest.mark.parametrize("new", ["file", "folder"])
def test_a_file_or_folder_takes_the_name_of_either(new, old):
    make("new", new, "new")
    if old:
        make("target", old, "old")
    durable.move(Path("new"), Path("target"))
    assert text_of("target") == "new"
    assert os.listdir() == ["target"]


def dead_pid():
    child = forked(int)
    child.join()
    return child.pid


def test_what_the_dead_left_is_removed_and_what_the_living_have_is_not():
    host, dead = socket.gethostname(), dead_pid()
    names = {
        f"a.tmp.{host}.{dead}.12ab": True,
        f"b.tmp.{host}.{dead}.12ab": False,
        "a": False,
        "a.tmp.x": False,
    }
    names |= {f"a.tmp.{host}.{os.getpid()}.12ab": False, f"a.tmp.elsewhere.{dead}.12ab": False}
    names[f"a.tmp.{host}.{dead}.12ab.tmp.{host}.{dead}.34cd"] = (
        True  # a temporary name's own temporary
    )
    for name in names:
        make(name, "folder", "x")
    removed = durable.remove_leftovers(Path("a"))
    assert set(removed) == {name for name, gone in names.items() if gone}
    left = set(os.listdir())
    assert left == names.keys() - set(removed)
    for name in left:
        (Path(name) / "inside").unlink()
        Path(name).rmdir()


@pytest.mark.parametrize("number", [signal.SIGINT])
def test_an_interrupt_waits_until_the_block_ends(number):
    done = []
    with pytest.raises(KeyboardInterrupt), durable.uninterrupted():  # noqa: PT012
        signal.raise_signal(number)
        done.append("all of it")
    assert done == ["all of it"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_link_planted_at_the_temporary_name_is_not_followed(monkeypatch, tmp_path):
    (tmp_path / "target").write_text("untouched")
    (tmp_path / "planted").symlink_to(tmp_path / "target")
    monkeypatch.setattr("framework.system.durable.temporary_name", lambda _: tmp_path / "planted")
    with (
        pytest.raises(ResourceError, match="R101"),
        durable.open_durable(tmp_path / "file") as file,
    ):
        file.write(b"x")
    assert (tmp_path / "target").read_text() == "untouched"
    assert not (tmp_path / "file").exists()


def refused(holder):
    return ResourceError(150, str(LOCK), f"{holder} is at it", "wait")


def hold(shared, ready):
    with durable.locked(LOCK, refused, shared=shared):
        ready.put(os.getpid())
        time.sleep(60)


@pytest.fixture
def holder(request):
    """Yield the id of a process that holds the lock."""
    ready = multiprocessing.get_context("fork").SimpleQueue()
    process = forked(hold, getattr(request, "param", False), ready)
    yield ready.get()
    process.kill()
    process.join()


def test_a_lock_is_gone_when_it_was_given_back():
    with durable.locked(LOCK, refused):
        assert f"process {os.getpid()} on " in LOCK.read_text()
    assert os.listdir() == []


def test_a_living_holder_is_named(holder):
    with (
        pytest.raises(ResourceError, match=rf"R150.*x\.lock: process {holder} on .* since 20"),
        durable.locked(LOCK, refused),
    ):
        pass


def test_a_dead_ones_lock_is_free(holder):
    os.kill(holder, signal.SIGKILL)
    with durable.locked(LOCK, refused):
        assert str(os.getpid()) in LOCK.read_text()
    assert os.listdir() == []


@pytest.mark.parametrize("holder", [True], indirect=True)
def test_a_shared_lock_is_shared_but_not_with_one_who_wants_it_alone(holder):
    with durable.locked(LOCK, refused, shared=True):
        pass
    assert LOCK.exists()
    with pytest.raises(ResourceError, match="R150"), durable.locked(LOCK, refused):
        pass


def test_a_link_in_the_locks_place_is_not_followed():
    Path("target").write_text("mine")
    LOCK.symlink_to("target")
    with pytest.raises(ResourceError, match="R101"), durable.locked(LOCK, refused):
        pass
    assert Path("target").read_text() == "mine"
