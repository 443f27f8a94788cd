"""What travels to a GPU machine, and what runs there, on a small tree that only looks like ours."""

import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"
FILES = {
    "torch.py": """
        __version__ = "0.0"
        class cuda:
            device_count = staticmethod(lambda: 0)
        class version:
            cuda = None
        """,
    "framework/__init__.py": "",
    "framework/system/__init__.py": "",
    "framework/system/native/twice.c": "int twice(int x) { return 2 * x; }",
    "framework/system/native/__init__.py": """
        import ctypes
        from pathlib import Path
        SIGNATURES = {"twice": ()}
        def find(name):
            path = Path(__file__).with_name("_native.so")
            return getattr(ctypes.CDLL(str(path)), name) if path.exists() else None
        """,
    "pyproject.toml": """
        [tool.pytest.ini_options]
        addopts = "-q --import-mode=importlib"
        markers = ["gpu: needs CUDA"]
        """,
    "tests/test_marked.py": """
        import pytest, small
        @pytest.mark.gpu
        def test_that_passes():
            assert small.VALUE == 3
        @pytest.mark.gpu
        def test_that_fails():
            assert small.VALUE == 4
        def test_without_the_mark():
            assert False
        """,
    "tests/test_other.py": "raise RuntimeError",
    "benchmarks/gpu.py": """
        import pathlib, sys, time
        out = pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
        (out / "gpu.json").write_text('{"facts": {}}')
        print("facts are known")
        pathlib.Path("benchmarks/arguments").write_text(" ".join(sys.argv))
        time.sleep(0 if "--small" in sys.argv else 60)
        """,
}


@pytest.fixture
def scripts(monkeypatch):
    """Return the two scripts as modules."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import gpu_bundle
    import gpu_go

    return gpu_bundle, gpu_go


def git(folder, *words):
    name = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "-C", folder, *name, *words], check=True, capture_output=True)


def make_tree(folder):
    """Make a repository with the files that ``go.py`` needs."""
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(re.sub(r"^ {8}", "", text, flags=re.MULTILINE))
    (folder / "hatch_build.py").write_bytes((ROOT / "hatch_build.py").read_bytes())
    git(folder, "init")
    git(folder, "add", ".")
    git(folder, "commit", "-m", "all")
    (folder / "untracked").touch()


def make_wheel(bundle, python):
    """Write a wheel of a package ``small`` in place of what the registry has."""
    folder = bundle / "wheels"
    folder.mkdir()
    files = {
        "small.py": "VALUE = 3",
        "small-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: small\nVersion: 1.0\n",
        "small-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nTag: py3-none-any\n",
        "small-1.0.dist-info/RECORD": "",
    }
    with zipfile.ZipFile(folder / "small-1.0-py3-none-any.whl", "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)


@pytest.fixture(scope="module")
def small_tree(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tree")
    make_tree(folder)
    return folder


@pytest.fixture
def bundling(scripts, small_tree, tmp_path, monkeypatch):
    """Return the script that makes bundles, set to the small tree and to no registry."""
    module, _ = scripts
    shutil.copytree(small_tree, tmp_path / "tree")
    monkeypatch.setattr(module, "ROOT", tmp_path / "tree")
    monkeypatch.setattr(module, "add_wheels", make_wheel)
    return module


HERE = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture
def bundle(bundling, tmp_path):
    bundling.make_bundle(tmp_path / "bundle", HERE, 60, None)
    return tmp_path / "bundle"


def start(bundle, *words, **environment):
    """Start ``go.py`` in an unrelated folder, as a user of the other machine would."""
    env = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    env.pop("OUT", None)
    command = [sys.executable, str(bundle / "go.py"), *words]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, env={**env, **environment}
    )


def go(bundle, *words, **environment):
    process = start(bundle, *words, **environment)
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def test_a_bundle_holds_the_tracked_files_the_wheels_and_the_photographs(bundling, tmp_path):
    photographs = tmp_path / "photographs"
    (photographs / "train" / "cat").mkdir(parents=True)
    bundling.make_bundle(tmp_path / "out" / "bundle", "3.12", 60, photographs, photographs)
    assert os.listdir(tmp_path / "out") == ["bundle"]
    manifest = json.loads((tmp_path / "out" / "bundle" / "bundle.json").read_text())
    wheel = "wheels/small-1.0-py3-none-any.whl"
    assert set(manifest["sha256"]) == {
        *("cifar10.tar.gz", "images.tar", "go.py", "tree.tar.gz", wheel),
    }
    assert manifest["python"] == "3.12"
    with tarfile.open(tmp_path / "out" / "bundle" / "tree.tar.gz") as archive:
        assert set(archive.getnames()) == {*FILES, "hatch_build.py"}


@pytest.mark.slow
def test_a_bundle_that_is_too_large_names_the_largest_file_and_leaves_nothing(bundling, tmp_path):
    (tmp_path / "tree" / "large.bin").write_bytes(os.urandom(10_000))
    git(tmp_path / "tree", "add", ".")
    with pytest.raises(bundling.BundleError, match=r"more than the 0\.01 MB .* is tree\.tar\.gz"):
        bundling.make_bundle(tmp_path / "out" / "bundle", "3.12", 0.01, None)
    assert os.listdir(tmp_path / "out") == []


@pytest.mark.slow
def test_a_package_that_cannot_be_had_is_one_line(
    scripts, small_tree, tmp_path, monkeypatch, capsys
):
    module, _ = scripts
    shutil.copytree(small_tree, tmp_path / "tree")
    (tmp_path / "tree" / "constraints.txt").write_text("nothing==1.0\n")
    monkeypatch.setattr(module, "ROOT", tmp_path / "tree")
    monkeypatch.setattr(module, "CARRIED", ("nothing",))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["gpu_bundle.py", str(tmp_path / "bundle")])
    assert module.main() == 2
    error = capsys.readouterr().err
    assert error.startswith("error: -m pip download: ERROR: No matching distribution")
    assert not (tmp_path / "bundle").exists()


def test_what_the_package_needs_is_carried_or_on_the_machine(scripts):
    module, _ = scripts
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["report"], *extras["stats"]]
    names = {re.split(r"[<>=]", requirement)[0] for requirement in wanted}
    assert names <= {*module.CARRIED, *module.ON_THE_MACHINE}
    assert not {*module.CARRIED} & {*module.ON_THE_MACHINE}
    carried = module.CARRIED + module.BUILT_HERE
    assert len(module.pinned(carried)) == len(carried)


def fat_binary(*entries):
    """Return a fat binary, whose entries are given as kind, architecture and code."""
    rest = b"".join(
        struct.pack("<HHIQ12xI32x", kind, 0, 64, len(code), architecture) + code
        for kind, architecture, code in entries
    )
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(rest)) + rest


def test_dali_travels_in_parts_with_the_code_of_one_architecture(scripts, tmp_path):
    import gpu_dali

    _, gpu_go = scripts
    codes = [(2, 80, b"old" * 9), (2, 90, b"new" * 9), (1, 100, b"ptx" * 9)]
    around = b"\x50\xed\x55\xba" + os.urandom(999)  # the first word also comes by chance
    files = {
        "nvidia/__init__.py": b"",
        "nvidia/dali/libdali.so": around + fat_binary(*codes) + around,
        "nvidia/nvjpeg/lib/libnvjpeg.so.12": os.urandom(9999),
        "nvidia/dali/own.cpython-312-x86_64-linux-gnu.so": b"3.12",
        "nvidia/dali/own.cpython-311-x86_64-linux-gnu.so": b"3.11",
    }
    (tmp_path / "wheels").mkdir()
    with zipfile.ZipFile(tmp_path / "wheels" / "dali-1-py3-none-any.whl", "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    site = tmp_path / "site"
    gpu_dali.unpack(tmp_path / "wheels", site, "3.12")
    for library in site.rglob("*.so*"):
        gpu_dali.prune(library, 90)
    assert gpu_dali.pack(site, tmp_path / "parts", 4000) > 2
    gpu_go.unpack_dali(tmp_path / "parts", tmp_path / "there")
    names = {str(path.relative_to(tmp_path / "there")) for path in tmp_path.rglob("there/**/*.*")}
    assert names == {*files} - {"nvidia/__init__.py", [*files][-1]}
    kept = [(kind, arch, code if arch == 90 else bytes(27)) for kind, arch, code in codes]
    pruned = (tmp_path / "there" / "nvidia/dali/libdali.so").read_bytes()
    assert pruned == around + fat_binary(*kept) + around
    (tmp_path / "parts" / "part-2").unlink()
    with pytest.raises(gpu_go.GoError, match=r"are not all .* copy every part there"):
        gpu_go.unpack_dali(tmp_path / "parts", tmp_path / "again")
    assert not (tmp_path / "again").exists()


@pytest.mark.slow
def test_the_tests_with_the_mark_run_and_each_outcome_is_kept(bundle, tmp_path):
    code, out, _ = go(bundle, "tests", OUT=str(tmp_path / "out"))
    assert code == 1
    assert "in 1 files: 1 failed, 1 passed" in out
    lines = (tmp_path / "out" / "tests" / "results.jsonl").read_text().splitlines()
    results = {line["test"]: line for line in map(json.loads, lines)}
    assert "assert 3 == 4" in results["tests/test_marked.py::test_that_fails"]["said"]
    assert results["tests/test_marked.py::test_that_passes"]["outcome"] == "passed"
    setup = json.loads((tmp_path / "out" / "setup.json").read_text())
    assert (setup["compiler"], setup["functions"]) == ("no errors", {"twice": True})


def test_a_damaged_bundle_is_refused(bundle):
    (bundle / "tree.tar.gz").write_bytes(b"")
    code, _, err = go(bundle, "first")
    assert code == 2
    assert err.endswith("tree.tar.gz: is not as it was packed; send the bundle again\n")
