"""Pack DALI for a GPU machine that has no package registry, in parts that can travel.

    python benchmarks/gpu_dali.py OUT [--python 3.12] [--architecture 90] [--limit-mb 60]

OUT becomes a folder with ``part-1``, ``part-2`` and so on, each small enough for one copy. On the
other side, put all of them into one folder, and name it to a bundle (`benchmarks/gpu_bundle.py`):
``python3 go.py tests --dali FOLDER``.

DALI's libraries hold machine code for seven generations of GPUs, 424 MB even when packed. All but
that of ``--architecture`` (90: Hopper) is overwritten with zeros, which pack to nothing, and
modules for other Pythons are left out. So the result is for such a machine only.
"""

import argparse
import struct
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from gpu_bundle import BundleError, download

PACKAGES = (
    "nvidia-dali-cuda120",
    "nvidia-nvimgcodec-cu12",
    "nvidia-libnvcomp-cu12",
    "nvidia-nvjpeg-cu12",
    "nvidia-nvjpeg2k-cu12",
    "astunparse",
    "gast",
    "optree",
    "nvtx",
    "makefun",
    "libcst",
)
# A fat binary begins with this word, its version (u16), the size of this header (u16) and that of
# the rest (u64).
MAGIC = struct.pack("<I", 0xBA55ED50)
PTX, MACHINE_CODE = 1, 2


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", help="a new folder")
    parser.add_argument("--python", default="3.12", help="the version on the machine")
    parser.add_argument("--architecture", type=int, default=90, help="of the machine's GPU")
    parser.add_argument("--limit-mb", type=float, default=60, help="megabytes of a part")
    options = parser.parse_args()
    out = Path(options.out)
    try:
        if out.exists():
            raise BundleError(f"OUT = {out}: exists; name a new folder")
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent) as work:
            download(Path(work, "wheels"), options.python, PACKAGES)
            site = Path(work, "site")
            unpack(Path(work, "wheels"), site, options.python)
            for library in site.rglob("*.so*"):
                prune(library, options.architecture)
            count = pack(site, Path(work, "parts"), int(options.limit_mb * 1e6))
            Path(work, "parts").replace(out)
    except BundleError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{out}: {count} parts")
    return 0


def unpack(wheels: Path, site: Path, python: str) -> None:
    """Unpack wheels as one folder of packages, without what would hide those of the machine."""
    for wheel in wheels.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)  # noqa: S202  # from the registry that pip uses
    # torch's own packages lie below ``nvidia``, too, in another folder
    site.joinpath("nvidia", "__init__.py").unlink(missing_ok=True)
    own = f"cpython-{python.replace('.', '')}-"
    for module in site.rglob("*.cpython-*.so"):
        if own not in module.name:
            module.unlink()


def prune(library: Path, keep: int) -> None:
    """Overwrite the code for other architectures with zeros. All sizes and places stay."""
    data = bytearray(library.read_bytes())
    position = 0
    while (start := data.find(MAGIC, position)) >= 0:
        position = start + 4
        if start + 16 > len(data):
            break
        header, size = struct.unpack_from("<HQ", data, start + 6)
        if header != 16 or size > len(data) - start - 16:  # these four bytes by chance
            continue
        position = end = start + 16 + size
        entry = start + 16
        while entry + 32 <= end:
            kind, header, size = struct.unpack_from("<H2xIQ", data, entry)
            if kind not in (PTX, MACHINE_CODE) or entry + header + size > end:
                break
            (architecture,) = struct.unpack_from("<I", data, entry + 28)
            if architecture != keep:
                data[entry + header : entry + header + size] = bytes(size)
            entry += header + size
    library.write_bytes(data)


def pack(site: Path, parts: Path, limit: int) -> int:
    """Pack a folder into files of at most ``limit`` bytes. Return how many."""
    packed = site.with_name("dali.tar.xz")
    with tarfile.open(packed, "w:xz") as archive:
        archive.add(site, arcname=".")
    parts.mkdir()
    count = 0
    with open(packed, "rb") as whole:
        while piece := whole.read(limit):
            count += 1
            parts.joinpath(f"part-{count}").write_bytes(piece)
    return count


if __name__ == "__main__":
    sys.exit(main())
