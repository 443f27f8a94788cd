"""Run the GPU tests and benchmarks of a bundle, on a machine that cannot install anything.

    python3 go.py tests     # the tests marked gpu, in eight processes
    python3 go.py first     # benchmarks: facts, same, overhead, overlap, loading
    python3 go.py second    # benchmarks: cifar10_fast, augments, switches
    python3 go.py third --nets resnet50    # benchmarks: utilization, one net in a go

With ``--dali FOLDER``, where the parts lie that `benchmarks/gpu_dali.py` has made, DALI is there,
too.

`benchmarks/gpu_bundle.py` makes the bundle, and copies this file into it as ``go.py``. It needs
only the standard library. Every go first checks the bundle, unpacks it into the folder ``unpacked``
beside this file, and compiles the C code there. The packages of the machine stay as they are.

A go ends after ``--minutes`` at the latest. Everything is printed and stored at once, in the folder
``$OUT`` if that is set, otherwise in ``results`` beside this file:

- ``setup.json``: the machine, and whether the C library is used
- ``tests/results.jsonl``: one line per test, with its traceback if it failed
- ``GO/gpu.json``: the figures of each part that has ended
- ``GO/log.txt``: all that was printed
"""

import argparse
import hashlib
import importlib.util
import json
import lzma
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from collections import Counter
from contextlib import suppress
from pathlib import Path
from threading import Timer
from typing import Any, NamedTuple

PARTS = {
    "tests": (),
    "first": ("facts", "same", "overhead", "overlap", "loading"),
    "second": ("cifar10_fast", "augments", "switches"),
    "third": ("utilization",),
}
NUM_PROCESSES = 8  # on one GPU: most of a test is starting, on the host
TEST_LIMIT_S = 240
GRACE_S = 10  # between asking a program to end and killing it
RESULTS = "PACELINE_GPU_RESULTS"  # where `pytest_runtest_logreport` writes
# Runs in the unpacked tree and prints one line of JSON.
LOOK = """
import json, platform, torch
from framework.system.native import SIGNATURES, find
names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
print(json.dumps({
    "python": platform.python_version(), "torch": str(torch.__version__),
    "cuda": torch.version.cuda, "devices": names,
    "functions": {name: find(name) is not None for name in SIGNATURES},
}))
"""


class Places(NamedTuple):
    """Folders of a bundle."""

    bundle: Path
    tree: Path
    site: Path

    @property
    def dali(self) -> Path:
        return self.bundle / "unpacked" / "dali"

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment for programs of the tree.

        Carried packages come before those of the machine.
        """
        given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        paths = [self.bundle, self.tree, self.tree / "examples", self.site, *filter(None, given)]
        own = {"PYTHONUNBUFFERED": "1"}
        if self.dali.is_dir():
            paths.append(self.dali)
            given = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
            libraries = [path for path in self.dali.glob("nvidia/*/lib*") if path.is_dir()]
            own["LD_LIBRARY_PATH"] = os.pathsep.join([*map(str, libraries), *filter(None, given)])
        return {**os.environ, **own, "PYTHONPATH": os.pathsep.join(map(str, paths))}


class GoError(Exception):
    """One line for the user: where = value: what is wrong; what to do."""


def main() -> int:
    options = parse()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    bundle = Path(__file__).resolve().parent
    results = Path(options.out or os.environ.get("OUT") or bundle / "results").resolve()
    failed = False
    try:
        for go in options.goes:
            end = time.monotonic() + 60 * options.minutes
            results.joinpath(go).mkdir(parents=True, exist_ok=True)
            places = set_up(bundle, results, options.dali)
            if go == "tests":
                failed |= run_tests(places, results / go, end)
            else:
                failed |= run_parts(places, results / go, end, PARTS[go], options)
    except GoError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"\nresults: {results}", flush=True)
    return int(failed)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("goes", nargs="+", choices=PARTS, metavar="GO", help=", ".join(PARTS))
    parser.add_argument("--minutes", type=float, default=8.5, help="a go ends by then")
    parser.add_argument("--out", help="the folder of the results")
    parser.add_argument("--device", default="cuda", help="passed on to benchmarks/gpu.py")
    parser.add_argument("--seconds", default="3", help="passed on to benchmarks/gpu.py")
    parser.add_argument("--nets", default="resnet50,resnet18", help="of utilization")
    parser.add_argument("--dali", help="the folder with all parts of DALI")
    parser.add_argument("--small", action="store_true", help="sizes for a trial without a GPU")
    return parser.parse_args()


def stop(number: int, _: Any) -> None:
    """End as an exception does, so that whatever was started is ended, too."""
    sys.exit(128 + number)


# --- set up


def set_up(bundle: Path, results: Path, dali: str | None) -> Places:
    """Unpack the bundle, compile its C code, and say what the machine is.

    Raises:
        GoError: The bundle is damaged or for another Python, or torch cannot be imported.
    """
    manifest = check_bundle(bundle)
    places = unpack(bundle, manifest)
    if dali is not None and not places.dali.is_dir():
        unpack_dali(Path(dali), places.dali)
    compiled = compile_native(places)
    done = subprocess.run(
        [sys.executable, "-c", LOOK],
        cwd=places.tree,
        env=places.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise GoError(f"the package cannot be imported here\n{done.stderr}")
    machine = json.loads(done.stdout.splitlines()[-1])
    machine = {"revision": manifest["revision"], **machine, "compiler": compiled or "no errors"}
    write_text(results / "setup.json", json.dumps(machine, indent=1))
    print_setup(machine)
    return places


def check_bundle(bundle: Path) -> dict[str, Any]:
    """Return the manifest.

    Raises:
        GoError: A file is missing or differs, or the bundle is for another Python.
    """
    path = bundle / "bundle.json"
    if not path.is_file():
        raise GoError(f"{path}: does not exist; make a bundle with benchmarks/gpu_bundle.py")
    manifest = json.loads(path.read_text())
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if here != manifest["python"]:
        wanted = manifest["python"]
        raise GoError(f"python = {here}: the bundle is for {wanted}; make one with --python {here}")
    for name, expected in manifest["sha256"].items():
        file = bundle / name
        if not file.is_file() or hashlib.sha256(file.read_bytes()).hexdigest() != expected:
            raise GoError(f"{file}: is not as it was packed; send the bundle again")
    return manifest


def unpack(bundle: Path, manifest: dict[str, Any]) -> Places:
    """Unpack the tree and install the wheels into the bundle's own folder, once."""
    folder = bundle / "unpacked"
    places = Places(bundle, folder / "tree", folder / "site")
    stamp = folder / "bundle.json"
    if stamp.is_file() and json.loads(stamp.read_text()) == manifest:
        return places
    shutil.rmtree(folder, ignore_errors=True)
    places.site.mkdir(parents=True)
    with tarfile.open(bundle / "tree.tar.gz") as archive:
        archive.extractall(places.tree, filter="data")
    install(sorted((bundle / "wheels").glob("*.whl")), places.site)
    write_text(stamp, json.dumps(manifest))
    return places


def unpack_dali(parts: Path, folder: Path) -> None:
    """Join the parts of DALI and unpack them. GoError if one is missing."""
    paths = sorted(parts.glob("part-*"), key=lambda path: int(path.name.partition("-")[2]))
    whole, middle = parts / "whole.tar.xz", folder.with_name("dali-unpacked")
    with open(whole, "wb") as file:
        file.writelines(path.read_bytes() for path in paths)
    try:
        with tarfile.open(whole) as archive:
            archive.extractall(middle, filter="data")
    except (tarfile.TarError, EOFError, lzma.LZMAError) as error:
        shutil.rmtree(middle, ignore_errors=True)
        what = f"{len(paths)} parts are not all ({error})"
        raise GoError(f"--dali = {parts}: {what}; copy every part there") from error
    finally:
        whole.unlink()
    middle.rename(folder)


def install(wheels: list[Path], site: Path) -> None:
    """Install ``wheels`` into the folder ``site``, without a registry.

    A wheel is a ZIP file of what belongs there, so a Python without pip unpacks it.
    """
    if not wheels:
        return
    if importlib.util.find_spec("pip") is None:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(site)  # noqa: S202  # our own files
        return
    words = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps"]
    words += ["--no-compile", "--disable-pip-version-check", "--root-user-action=ignore"]
    words += ["--target", str(site), *map(str, wheels)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise GoError(f"pip cannot install the wheels here\n{done.stderr}")


def compile_native(places: Places) -> str:
    """Compile the C code with gcc, as the project's build does. Return "", or what went wrong."""
    environment = {"CC": "gcc", **os.environ}
    done = subprocess.run(
        [sys.executable, "hatch_build.py"],
        cwd=places.tree,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if not done.returncode:
        return ""
    return done.stderr.strip() or f"exit code {done.returncode}"


def print_setup(machine: dict[str, Any]) -> None:
    devices = ", ".join(machine["devices"]) or "no CUDA device"
    used = [name for name, is_there in machine["functions"].items() if is_there]
    print(f"revision {machine['revision']}, Python {machine['python']}, torch {machine['torch']}")
    print(f"devices: {devices}")
    print(f"C library: {machine['compiler']}; {len(used)} of {len(machine['functions'])} functions")
    print(f"found and used: {', '.join(used) or 'none, which is slower'}", flush=True)


# --- goes


def run_tests(places: Places, results: Path, end: float) -> bool:
    """Run the tests marked ``gpu``. Return whether any failed or could not be run."""
    files = gpu_tests(places.tree)
    outcomes = results / "results.jsonl"
    outcomes.unlink(missing_ok=True)
    words = [sys.executable, "-m", "pytest", "-vv", "-ra", "-W", "default", "-m", "gpu"]
    words += ["-n", str(NUM_PROCESSES), "--dist", "load", "--timeout", str(TEST_LIMIT_S)]
    words += ["-p", "no:cacheprovider", "-p", Path(__file__).stem, *files]
    environment = {**places.environment, RESULTS: str(outcomes)}
    code = run(words, places.tree, environment, results / "log.txt", end)
    counts = outcome_counts(outcomes)
    told = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
    print(f"\ntests marked gpu, in {len(files)} files: {told or 'none was run'} (pytest: {code})")
    return bool(code)


def gpu_tests(tree: Path) -> list[str]:
    """Return the paths in ``tree`` of the test files that use the mark.

    pytest would have to collect all files to tell, which takes longer than some of the tests.
    """
    files = sorted((tree / "tests").rglob("test_*.py"))
    marked = [path for path in files if "pytest.mark.gpu" in path.read_text(encoding="utf-8")]
    return [str(path.relative_to(tree)) for path in marked]


def pytest_runtest_logreport(report: Any) -> None:
    """Store the outcome of a test at once. pytest calls this, because ``-p`` names this file."""
    path = os.environ.get(RESULTS)
    if path is None or "PYTEST_XDIST_WORKER" in os.environ:
        return  # the first process hears of all tests
    if report.passed and report.when != "call":
        return
    said = report.longrepr[-1] if isinstance(report.longrepr, tuple) else report.longreprtext
    line = {
        "test": report.nodeid,
        "outcome": report.outcome,
        "phase": report.when,
        "seconds": round(report.duration, 2),
        "said": said,
    }
    with open(path, "a", encoding="utf-8") as file:
        file.write(f"{json.dumps(line)}\n")


def outcome_counts(outcomes: Path) -> Counter[str]:
    if not outcomes.exists():
        return Counter()
    lines = outcomes.read_text(encoding="utf-8").splitlines()
    return Counter(json.loads(line)["outcome"] for line in lines)


def run_parts(
    places: Places, results: Path, end: float, parts: tuple[str, ...], options: argparse.Namespace
) -> bool:
    """Run parts of benchmarks/gpu.py. Return whether any failed."""
    left_s = end - time.monotonic()
    words = [sys.executable, "benchmarks/gpu.py", "--only", ",".join(parts), "--out", str(results)]
    words += ["--minutes", f"{left_s / 60:.3f}", "--seconds", options.seconds]
    words += ["--device", options.device]
    words += ["--nets", options.nets]
    for name, option in (("cifar10.tar.gz", "--cifar10"), ("images.tar", "--images")):
        if (places.bundle / name).exists():
            words += [option, str(places.bundle / name)]
    if options.small:
        words.append("--small")
    # gpu.py ends by itself, and then says which part had no time left.
    return bool(run(words, places.tree, places.environment, results / "log.txt", end + GRACE_S))


def run(words: list[str], cwd: Path, environment: dict[str, str], log: Path, end: float) -> int:
    """Run a program, at most until ``end``. Print and store each line as it comes.

    It gets a process group, not a session of its own: who kills this session must reach it, too.
    """
    with (
        open(log, "w", encoding="utf-8") as file,
        subprocess.Popen(
            words,
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            process_group=0,
        ) as process,
    ):
        timer = Timer(max(0.0, end - time.monotonic()), end_group, (process,))
        timer.start()
        try:
            for line in process.stdout or ():
                print(line, end="", flush=True)
                file.write(line)
                file.flush()
            return process.wait()
        finally:
            timer.cancel()
            end_group(process)


def end_group(process: subprocess.Popen[str]) -> None:
    """End a program and its process group, gently first: pytest then still prints its failures."""
    with suppress(ProcessLookupError):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            os.killpg(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S / 2)


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    unfinished = path.with_name(f"{path.name}.unfinished")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


if __name__ == "__main__":
    sys.exit(main())
