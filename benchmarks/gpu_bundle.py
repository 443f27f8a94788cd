"""Gather what must travel to a GPU machine that has no package registry.

    python benchmarks/gpu_bundle.py OUT [--cifar10 FOLDER_OR_TAR] [--images FOLDER_OR_TAR]
                                    [--python 3.12] [--limit-mb 60]

OUT becomes a folder with these files:

- ``wheels/``: the packages that the machine lacks, at the versions of constraints.txt
- ``tree.tar.gz``: the tracked files of this checkout, as they are now
- ``cifar10.tar.gz``: the photographs of ``recipes=cifar10_fast``, if ``--cifar10`` is given
- ``images.tar``: the photographs of the go ``third``, if ``--images`` is given
- ``bundle.json``: the revision, the Python version, and the SHA-256 of every file
- ``go.py``: what runs it all on the other side (`benchmarks/gpu_go.py`)

The machine brings x86-64 Linux, Python, gcc, and the packages in ``ON_THE_MACHINE``. The bundle
never carries torch.
"""

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# A test checks that these two tuples cover what pyproject.toml asks for.
CARRIED = (
    "hydra-core",
    "omegaconf",
    "lmdb",
    "simplejpeg",
    "isal",
    "psutil",
    "PyYAML",
    "kornia",
    "kornia_rs",
)
BUILT_HERE = ("antlr4-python3-runtime",)  # the registry has only its source, which is pure Python
ON_THE_MACHINE = (
    "torch",
    "numpy",
    "h5py",
    "opencv-python-headless",
    "rich",
    "matplotlib",
    "jinja2",
    "scikit-learn",
    "scipy",
    "tensorboard",
    "pytest",
    "pytest-xdist",
    "pytest-timeout",
    "hypothesis",
)
# pip compares these names exactly: a wheel for an older system must be named, too.
SYSTEMS = ("_2_28", "_2_27", "_2_24", "_2_17", "2014", "_2_12", "2010", "_2_5", "1")
PLATFORMS = tuple(f"manylinux{system}_x86_64" for system in SYSTEMS)


class BundleError(Exception):
    """One line for the user: where = value: what is wrong; what to do."""


def main() -> int:
    options = parse()
    try:
        size_mb = make_bundle(
            Path(options.out),
            options.python,
            options.limit_mb,
            Path(options.cifar10) if options.cifar10 else None,
            Path(options.images) if options.images else None,
        )
    except BundleError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{options.out}: {size_mb:.1f} MB. On the machine with the GPU, one command at a time:\n")
    for go in ("tests", "first", "second", "third"):
        print(f"python3 {Path(options.out).name}/go.py {go}")
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", help="a new folder")
    parser.add_argument(
        "--cifar10", help="a folder of train/ and test/, a subfolder per class, or a tar of one"
    )
    parser.add_argument("--images", help="photographs of any size, a folder or a tar")
    parser.add_argument("--python", default="3.12", help="the version on the machine")
    parser.add_argument("--limit-mb", type=float, default=60, help="megabytes that may travel")
    return parser.parse_args()


def make_bundle(
    out: Path, python: str, limit_mb: float, cifar10: Path | None, images: Path | None = None
) -> float:
    """Write the bundle to ``out``, and return its size in megabytes. Nothing is left if it fails.

    Raises:
        BundleError: ``out`` is not empty, a package cannot be had, or the bundle is too large.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BundleError(f"OUT = {out}: is not an empty folder; name a new one")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent) as work:
        bundle = Path(work, "bundle")
        bundle.mkdir()
        if cifar10 is not None:
            add_photographs(bundle, cifar10)
        if images is not None:
            add_images(bundle, images)
        add_tree(bundle)
        check_size(bundle, out, limit_mb)  # before anything is downloaded
        add_wheels(bundle, python)
        shutil.copyfile(Path(__file__).with_name("gpu_go.py"), bundle / "go.py")
        write_manifest(bundle, python)
        size_mb = check_size(bundle, out, limit_mb)
        bundle.replace(out)
    return size_mb


def add_photographs(bundle: Path, given: Path) -> None:
    packed = bundle / "cifar10.tar.gz"
    if given.is_file() and tarfile.is_tarfile(given):
        shutil.copyfile(given, packed)
    elif (given / "train").is_dir():
        with tarfile.open(packed, "w:gz") as archive:
            archive.add(given, arcname="cifar10")
    else:
        what = "is neither a tar nor a folder with train/ and test/"
        raise BundleError(f"--cifar10 = {given}: {what}; give one of the two")


def add_images(bundle: Path, given: Path) -> None:
    packed = bundle / "images.tar"
    if given.is_file() and tarfile.is_tarfile(given):
        shutil.copyfile(given, packed)
    elif given.is_dir():
        with tarfile.open(packed, "w") as archive:
            archive.add(given, arcname="images")
    else:
        raise BundleError(f"--images = {given}: is neither a tar nor a folder; give one of the two")


def add_tree(bundle: Path) -> None:
    """Pack the tracked files as they are now, so that what was tried here is what travels."""
    names = output("git", "-C", str(ROOT), "ls-files", "-z").split("\0")
    with tarfile.open(bundle / "tree.tar.gz", "w:gz") as archive:
        for name in filter(None, names):
            if (ROOT / name).exists():  # a removed file stays tracked until the commit
                archive.add(ROOT / name, arcname=name)


def add_wheels(bundle: Path, python: str) -> None:
    """Download wheels for ``python``, and build those that exist only as source."""
    download(bundle / "wheels", python, CARRIED)
    pip = (sys.executable, "-m", "pip")
    folder = str(bundle / "wheels")
    output(*pip, "wheel", "-q", "--no-deps", "-w", folder, *pinned(BUILT_HERE))


def download(folder: Path, python: str, names: tuple[str, ...]) -> None:
    """Download wheels for ``python``. BundleError if there is none."""
    pip = (sys.executable, "-m", "pip")
    version = ("--python-version", python, "--implementation", "cp")
    platforms = [f"--platform={platform}" for platform in PLATFORMS]
    wheels_only = ("--no-deps", "--only-binary=:all:", *version, *platforms)
    output(*pip, "download", "-q", *wheels_only, "-d", str(folder), *pinned(names))


def pinned(names: tuple[str, ...]) -> list[str]:
    """Return requirements at the versions that this revision was tested with."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    versions = dict(line.split("==") for line in lines if "==" in line)
    return [f"{name}=={versions[name]}" for name in names]


def output(*words: str) -> str:
    """Return what a program prints.

    Raises:
        BundleError: It failed.
    """
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        name = " ".join(words[1:4]) if words[0] == sys.executable else words[0]
        raise BundleError(f"{name}: {lines[-1]}; run it by hand to see more")
    return done.stdout


def write_manifest(bundle: Path, python: str) -> None:
    files = sorted(path for path in bundle.rglob("*") if path.is_file())
    names = {str(path.relative_to(bundle)): path for path in files}
    manifest = {
        "revision": output("git", "-C", str(ROOT), "describe", "--always", "--dirty").strip(),
        "made": time.strftime("%Y-%m-%d"),
        "python": python,
        "sha256": {
            name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in names.items()
        },
    }
    (bundle / "bundle.json").write_text(json.dumps(manifest, indent=1))


def check_size(bundle: Path, out: Path, limit_mb: float) -> float:
    """Return the size of all files in megabytes.

    Raises:
        BundleError: It is more than ``limit_mb``.
    """
    sizes = {path: path.stat().st_size / 1e6 for path in bundle.rglob("*") if path.is_file()}
    size_mb = sum(sizes.values())
    if size_mb > limit_mb:
        largest = max(sizes, key=lambda path: sizes[path])
        raise BundleError(
            f"{out} = {size_mb:.1f} MB: is more than the {limit_mb:g} MB that may travel; "
            f"the largest file is {largest.name} ({sizes[largest]:.1f} MB): give a smaller one"
        )
    return size_mb


if __name__ == "__main__":
    sys.exit(main())
