"""A read-only file system on which some files are slow: FUSE, served by a process of its own.

It speaks the kernel's protocol itself, since no library for it is installed. Only root may mount.
Source: include/uapi/linux/fuse.h.
"""

import ctypes
import errno
import os
import stat
import struct
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

HEADER = struct.Struct("<IIQQIIII")  # length, opcode, unique, node, uid, gid, pid, padding
ANSWER = struct.Struct("<IiQ")  # length, error, unique
ATTRIBUTES = struct.Struct("<6Q10I")
READ_ONLY = 1  # sys/mount.h: MS_RDONLY
DETACH = 2  # MNT_DETACH
DIRECT = 1  # FOPEN_DIRECT_IO: nothing is cached
LONGEST = 1 << 20
LOOKUP, FORGET, GETATTR, OPEN, READ, STATFS, RELEASE, FLUSH = 1, 2, 3, 14, 15, 17, 18, 25
INIT, OPENDIR, READDIR, RELEASEDIR, ACCESS, INTERRUPT, BATCH_FORGET = 26, 27, 28, 29, 34, 36, 42
libc = ctypes.CDLL(None, use_errno=True)


def why_not():
    """Return why nothing can be mounted here; "" if it can."""
    if os.geteuid() != 0:
        return "needs root, to mount a slow file system"
    if not Path("/dev/fuse").exists():
        return "needs /dev/fuse"
    return ""


@contextmanager
def slow_mount(source: Path, place: Path, slow: str, delay_s: float):
    """Show the files below ``source`` at ``place``. A read of ``slow`` takes ``delay_s``."""
    place.mkdir()
    words = [sys.executable, "-m", "tests.slow_mount", source, place, slow, str(delay_s)]
    root = Path(__file__).parents[1]
    server = subprocess.Popen([*map(str, words)], cwd=root, stdout=subprocess.PIPE, text=True)
    try:
        answer = server.stdout.readline().strip()
        if answer != "mounted":
            pytest.skip(f"needs the right to mount a file system ({answer})")
        yield place
    finally:
        libc.umount2(os.fsencode(place), DETACH)
        server.kill()
        server.communicate()


class Server:
    """Answers the kernel's requests."""

    def __init__(self, device, source, slow, delay_s):
        self.device = device
        self.slow = slow
        self.delay_s = delay_s
        self.paths = {1: source}
        self.nodes = {source: 1}

    def serve(self):
        while True:
            try:
                request = os.read(self.device, LONGEST + 4096)
            except OSError:  # unmounted
                return
            length, opcode, unique, node, *_ = HEADER.unpack_from(request)
            body = request[HEADER.size : length]
            if opcode in (FORGET, BATCH_FORGET, INTERRUPT):
                continue
            if opcode == READ and self.paths[node].name == self.slow:
                threading.Thread(target=self.answer, args=(opcode, unique, node, body)).start()
            else:
                self.answer(opcode, unique, node, body)

    def answer(self, opcode, unique, node, body):
        try:
            data, error = self.result(opcode, node, body), 0
        except OSError as problem:
            data, error = b"", -(problem.errno or errno.EIO)
        os.write(self.device, ANSWER.pack(ANSWER.size + len(data), error, unique) + data)

    def result(self, opcode, node, body):
        if opcode == INIT:
            return struct.pack("<4I2H2I2H8I", 7, 31, LONGEST, 0, 16, 12, LONGEST, 1, *[0] * 10)
        path = self.paths[node]
        if opcode == LOOKUP:
            child = path / os.fsdecode(body[:-1])
            attributes = self.attributes(child)
            return struct.pack("<4Q2I", self.nodes[child], 0, 60, 60, 0, 0) + attributes
        if opcode == GETATTR:
            return struct.pack("<Q2I", 60, 0, 0) + self.attributes(path)
        if opcode in (OPEN, OPENDIR):
            return struct.pack("<Q2I", 0, DIRECT if opcode == OPEN else 0, 0)
        if opcode in (READ, READDIR):
            _, offset, size = struct.unpack_from("<QQI", body)
            return self.content(path, offset, size) if opcode == READ else names(path, offset, size)
        if opcode in (RELEASE, RELEASEDIR, FLUSH, ACCESS):
            return b""
        if opcode == STATFS:
            return struct.pack("<5Q10I", 0, 0, 0, 0, 0, 4096, 255, 4096, *[0] * 7)
        raise OSError(errno.ENOSYS, "")

    def attributes(self, path):
        facts = path.stat()
        node = self.nodes.setdefault(path, len(self.nodes) + 1)
        self.paths[node] = path
        times = [int(facts.st_mtime)] * 3
        mode = (facts.st_mode & ~0o222, 1, 0, 0, 0, 4096, 0)
        return ATTRIBUTES.pack(node, facts.st_size, 0, *times, 0, 0, 0, *mode)

    def content(self, path, offset, size):
        with open(path, "rb") as file:
            file.seek(offset)
            data = file.read(size)
        if data and path.name == self.slow:
            time.sleep(self.delay_s)
        return data


def names(path, offset, size):
    """Return entries of a folder from ``offset`` on, as many as fit into ``size`` bytes."""
    listed = b""
    for number, child in enumerate(sorted(path.iterdir())):
        name = os.fsencode(child.name)
        kind = stat.S_IFMT(child.stat().st_mode) >> 12
        entry = struct.pack("<2Q2I", number + 2, number + 1, len(name), kind) + name
        entry += bytes(-len(entry) % 8)
        if number >= offset and len(listed) + len(entry) <= size:
            listed += entry
    return listed


def main(source, place, slow, delay_s):
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    kind = b"fuse.paceline"
    if libc.mount(b"paceline", os.fsencode(place), kind, READ_ONLY, options):
        print(f"not mounted: {os.strerror(ctypes.get_errno())}", flush=True)
        return
    print("mounted", flush=True)
    Server(device, Path(source), slow, float(delay_s)).serve()


if __name__ == "__main__":
    main(*sys.argv[1:])
