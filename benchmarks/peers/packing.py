"""Compare packing with a plain Pillow loop: ``python -m peers.packing FOLDER NUM_WORKERS ROUNDS``.

Whole commands are timed, in turn. The time that a command needs to start (mostly imports) is
measured by the same command on two images, and subtracted, so that the rate of 800 images also
holds for 800,000. The result is printed as JSON.
"""

import io
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from multiprocessing import Pool
from pathlib import Path

import lmdb
from PIL import Image

OURS, LOOP = "paceline pack", "Pillow loop"
FEW = 2


def resized(path: str) -> bytes:
    """Scale an image file to a shorter side of 256 pixels. Return it as a JPEG of quality 90."""
    with Image.open(path) as file:
        image = file.convert("RGB")
    scale = 256 / min(image.size)
    image = image.resize(
        (round(image.width * scale), round(image.height * scale)), Image.Resampling.BILINEAR
    )
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def pillow_loop(folder: str, output: str, num_workers: int) -> None:
    """Pack as a script of ten minutes does: a pool scales the images, and this process writes."""
    files = sorted(str(path) for path in Path(folder).glob("*/*"))
    environment = lmdb.open(output, subdir=False, map_size=1 << 34)
    with Pool(num_workers) as pool, environment.begin(write=True) as transaction:
        for number, data in enumerate(pool.imap(resized, files, chunksize=8)):
            transaction.put(b"%08d" % number, data)
    environment.close()


def seconds(name: str, folder: str, num_workers: int, place: str) -> tuple[float, int]:
    """Run a whole command. Return its seconds, and the bytes that it wrote to the disk."""
    output = os.path.join(place, "packed.lmdb")
    if name == LOOP:
        command = [sys.executable, "-m", "peers.packing", "loop", folder, output, str(num_workers)]
    else:
        options = [f"input.path={folder}", f"output.path={output}", f"workers={num_workers}"]
        options += ["input=folder", "output=lmdb", "pack.resize=256", "pack.encode=jpeg"]
        command = [sys.executable, "-m", "framework", "pack", *options]
    start = time.perf_counter()
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    passed = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(f"{name}: {' '.join((done.stderr or done.stdout).split())[-300:]}")
    size = os.path.getsize(output)
    for path in Path(place).iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return passed, size


def main(data: str, num_workers: int, rounds: int) -> None:
    files = os.path.join(data, "files")
    count = len(os.listdir(files))
    rows: dict[str, list[tuple[float, float, int]]] = {LOOP: [], OURS: []}
    with tempfile.TemporaryDirectory() as place, tempfile.TemporaryDirectory() as few:
        for name in sorted(os.listdir(files))[:FEW]:
            shutil.copytree(os.path.join(files, name), os.path.join(few, name))
        for _ in range(rounds):
            for name, times in rows.items():
                start_s, _ = seconds(name, few, num_workers, place)
                whole_s, size = seconds(name, files, num_workers, place)
                times.append((whole_s, start_s, size))
    rates = {
        name: [(count - FEW) / (whole - start) for whole, start, _ in times]
        for name, times in rows.items()
    }
    told = [
        {
            "name": name,
            "whole_s": statistics.median(whole for whole, _, _ in times),
            "start_s": statistics.median(start for _, start, _ in times),
            "rate": statistics.median(rates[name]),
            "least": min(rates[name]),
            "most": max(rates[name]),
            "ratio": statistics.median(
                mine / loop for mine, loop in zip(rates[name], rates[LOOP], strict=True)
            ),
            "bytes": times[0][2],
        }
        for name, times in rows.items()
    ]
    print(json.dumps({"rows": told}))


if __name__ == "__main__":
    if sys.argv[1] == "loop":
        pillow_loop(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
