"""Compare ways to pack loose image files that are not in memory.

    python benchmarks/cold_pack.py FOLDER [--rounds 3] [--workers 2]

FOLDER has a subfolder of image files for each class. They are packed into LMDB as they are. Before
every command the files are dropped from the page cache, or read, so that all of them are in memory.
The ways take turns: ``paceline pack``, the same that does not ask for files beforehand, and a
script of ten minutes, whose pool of processes reads the files. The script prints the median files
per second, and the ratio to the hand-written script in the same round. The time that a command
needs for two files, mostly imports, is subtracted.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from multiprocessing import Pool
from pathlib import Path
from statistics import median

import lmdb

from framework.store.staging import drop_cached

HAND_WRITTEN = "hand-written"
ONE_BY_ONE = "paceline pack, one by one"
WAYS = (HAND_WRITTEN, ONE_BY_ONE, "paceline pack")
WITHOUT_ASKING = """
from framework.pack import jobs
jobs.ask_item_files = lambda *_: None
from framework import main
main.main()
"""
FEW = 2


def files_of(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*") if path.is_file())


def content(path: str) -> bytes:
    return Path(path).read_bytes()


def pack_by_hand(folder: str, output: str, num_workers: int) -> None:
    environment = lmdb.open(output, subdir=False, map_size=1 << 36)
    files = files_of(Path(folder))
    with Pool(num_workers) as pool, environment.begin(write=True) as transaction:
        for number, data in enumerate(pool.imap(content, files, chunksize=8)):
            transaction.put(b"%08d" % number, data)
    environment.close()


def seconds(way: str, folder: Path, num_workers: int, is_cold: bool) -> float:
    """Run a whole command, and return its seconds."""
    files = files_of(folder)
    if is_cold:
        drop_cached(files)
    else:
        for path in files:
            content(path)
    with tempfile.TemporaryDirectory(dir=folder.parent) as place:
        output = f"{place}/packed.lmdb"
        words = ["pack", "input=folder", f"input.path={folder}", f"output.path={output}"]
        words += ["output=lmdb", f"workers={num_workers}"]
        command = [sys.executable, "-m", "framework", *words]
        if way == ONE_BY_ONE:
            command = [sys.executable, "-c", WITHOUT_ASKING, *words]
        elif way == HAND_WRITTEN:
            command = [sys.executable, __file__, str(folder), "--by-hand", output]
            command += ["--workers", str(num_workers)]
        start = time.perf_counter()
        subprocess.run(command, cwd=place, check=True, capture_output=True)
        return time.perf_counter() - start


def copy_few(folder: Path, place: Path) -> None:
    """Copy two files into a class of ``place``."""
    (place / "few").mkdir(parents=True)
    for path in files_of(folder)[:FEW]:
        (place / "few" / Path(path).name).write_bytes(content(path))


def main() -> None:
    """Print a row per way, for cold files and for files in memory."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--by-hand", metavar="OUTPUT", help=argparse.SUPPRESS)
    options = parser.parse_args()
    folder = options.folder.resolve()
    if options.by_hand:
        pack_by_hand(str(folder), options.by_hand, options.workers)
        return
    count = len(files_of(folder)) - FEW
    print("| files | way | files/s | times by hand |")
    print("| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory(dir=folder.parent) as place:
        few = Path(place, "few")
        copy_few(folder, few)
        for is_cold in (True, False):
            rounds = [
                {
                    way: seconds(way, folder, options.workers, is_cold)
                    - seconds(way, few, options.workers, is_cold)
                    for way in WAYS
                }
                for _ in range(options.rounds)
            ]
            for way in WAYS:
                rate = count / median(times[way] for times in rounds)
                ratio = median(times[HAND_WRITTEN] / times[way] for times in rounds)
                state = "cold" if is_cold else "in memory"
                print(f"| {state} | {way} | {rate:,.0f} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
