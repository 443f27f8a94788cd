"""A file system that answers late, like one on a network: a read-only view of a folder, by FUSE.

    python -m planted.slow_files SOURCE MOUNT LATENCY_MS

It speaks the kernel's own protocol, so it needs no library, but root. It ends when it is unmounted.
Source: the kernel's include/uapi/linux/fuse.h, version 7.31.
"""

import ctypes
import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

NUM_THREADS = 32  # requests that are answered at the same time
BUFFER = 1 << 18
VALID_S = 60  # seconds for which the kernel remembers names and sizes
LIBC = ctypes.CDLL(None, use_errno=True)
READ_ONLY = 1 | 2 | 4  # with nosuid and nodev
DETACH = 2
UNANSWERED = (2, 36, 42)  # FORGET, INTERRUPT, BATCH_FORGET
NOT_THERE = 2  # ENOENT
UNKNOWN = 38  # ENOSYS


class SlowFiles:
    """Answers the kernel's requests from the files below ``source``."""

    def __init__(self, source: Path, latency_s: float, device: int) -> None:
        self._latency_s = latency_s
        self._device = device
        self._paths = {1: source}
        self._numbers = {source: 1}
        self._lock = threading.Lock()

    def serve(self) -> None:
        """Answer requests until the file system is unmounted."""
        while True:
            try:
                request = os.read(self._device, BUFFER)
            except OSError:
                return
            _, code, unique, node = struct.unpack_from("<IIQQ", request)
            if code in UNANSWERED:
                continue
            error = 0
            answer = b""
            try:
                answer = self._answer(code, node, request[40:])
            except FileNotFoundError:
                error = NOT_THERE
            except NotImplementedError:
                error = UNKNOWN
            os.write(self._device, struct.pack("<IiQ", 16 + len(answer), -error, unique) + answer)

    def _answer(self, code: int, node: int, body: bytes) -> bytes:
        path = self._paths.get(node, self._paths[1])  # 0 in INIT
        match code:
            case 26:  # INIT: the version, how far the kernel reads ahead, and the longest request
                ahead = struct.unpack_from("<III", body)[2]
                answer = struct.pack("<IIIIHHII", 7, 31, ahead, 0, 64, 48, 1 << 17, 1) + bytes(32)
            case 1:  # LOOKUP
                child = path / body.rstrip(b"\0").decode()
                attributes = self._attributes(child)
                number = self._number(child)
                answer = struct.pack("<QQQQII", number, 0, VALID_S, VALID_S, 0, 0) + attributes
            case 3:  # GETATTR
                answer = struct.pack("<QII", VALID_S, 0, 0) + self._attributes(path)
            case 14 | 27:  # OPEN, OPENDIR
                answer = bytes(16)
            case 15:  # READ
                answer = self._read(path, *struct.unpack_from("<QI", body, 8))
            case 28:  # READDIR
                answer = self._entries(path, *struct.unpack_from("<QI", body, 8))
            case 18 | 25 | 29:  # RELEASE, FLUSH, RELEASEDIR
                answer = b""
            case _:
                raise NotImplementedError
        return answer

    def _read(self, path: Path, start: int, size: int) -> bytes:
        time.sleep(self._latency_s)
        with open(path, "rb") as file:
            file.seek(start)
            return file.read(size)

    def _entries(self, path: Path, start: int, size: int) -> bytes:
        entries = b""
        names = sorted(os.listdir(path))
        for number in range(start, len(names)):
            name = names[number].encode()
            child = path / names[number]
            kind = 4 if child.is_dir() else 8
            entry = struct.pack("<QQII", self._number(child), number + 1, len(name), kind) + name
            entry += bytes(-len(entry) % 8)
            if len(entries) + len(entry) > size:
                break
            entries += entry
        return entries

    def _number(self, path: Path) -> int:
        with self._lock:
            number = self._numbers.setdefault(path, len(self._numbers) + 1)
            self._paths[number] = path
            return number

    def _attributes(self, path: Path) -> bytes:
        known = path.stat()
        times = (int(known.st_atime), int(known.st_mtime), int(known.st_ctime))
        sizes = (known.st_size, -(-known.st_size // 512))
        owner = (known.st_mode, known.st_nlink, known.st_uid, known.st_gid)
        return struct.pack(
            "<QQQQQQIIIIIIIIII", self._number(path), *sizes, *times, 0, 0, 0, *owner, 0, 4096, 0
        )


def mount(source: Path, place: Path, latency_s: float) -> None:
    """Mount a slow view of ``source``, and serve it until it is unmounted."""
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if LIBC.mount(b"slow", bytes(place), b"fuse.slow", READ_ONLY, options):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(place))
    files = SlowFiles(source, latency_s, device)
    threads = [threading.Thread(target=files.serve, daemon=True) for _ in range(NUM_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@contextmanager
def mounted(source: Path, place: Path, latency_ms: float) -> Generator[None]:
    """Serve a slow view of ``source`` at ``place``, in a process of its own."""
    LIBC.umount2(bytes(place), DETACH)  # what a killed command left
    place.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, __file__, str(source), str(place)]
    with subprocess.Popen([*command, f"{latency_ms:g}"]) as server:
        try:
            end = time.monotonic() + 10
            while not os.path.ismount(place):
                if time.monotonic() > end or server.poll() is not None:
                    raise OSError(f"{place}: cannot be mounted")
                time.sleep(0.05)
            yield
        finally:
            LIBC.umount2(bytes(place), DETACH)
            server.kill()


def no_mount() -> str:
    """Return why no file system can be mounted here; "" if one can."""
    if os.geteuid() or not os.access("/dev/fuse", os.W_OK):
        return "needs root and /dev/fuse"
    return ""


if __name__ == "__main__":
    mount(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]) / 1e3)
