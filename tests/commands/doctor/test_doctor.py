import json
import math
import os
import shutil
from pathlib import Path

import pytest

from framework.commands.doctor import machine_checks
from framework.measure import host
from tests.cli.command import paceline

USAGE = shutil.disk_usage(".")


def finding(name):
    return next(known for known in machine_checks.findings(Path()) if known.name == name)


@pytest.fixture
def quick(monkeypatch):
    """Write and read little."""
    monkeypatch.setattr(machine_checks, "FILE_BYTES", 8 << 20)
    monkeypatch.setattr(machine_checks, "READ_S", 0.1)


def test_each_finding_has_a_line_and_an_object_and_no_file_is_left(quick):
    done = paceline("doctor")
    names = [line[7:18].strip() for line in done.out.splitlines() if line[:5] in ("helps", "hurts")]
    expected = ["C functions", "TurboJPEG", "GPU", "cores", "/dev/shm", "disk", "page cache"]
    assert (done.code, names) == (0, expected)
    known = json.loads(paceline("doctor", "json=true").out)["findings"]
    assert [each["name"] for each in known] == expected
    assert known[-1]["figures"]["bytes_per_s"] > 0
    assert os.listdir() == []


def test_what_is_missing_comes_with_what_to_type(monkeypatch):
    monkeypatch.setattr(machine_checks.native, "are_compiled", lambda: False)
    monkeypatch.setattr(machine_checks, "turbojpeg", lambda: None)
    monkeypatch.setattr(machine_checks, "MEMORY", Path("/no/shm"))
    assert finding("C functions").advice.endswith("hatch_build.py")
    assert "turbojpeg" in finding("TurboJPEG").advice
    assert finding("/no/shm").advice == "paceline train data.stage=none"


def test_little_shared_memory_hurts(monkeypatch):
    small = USAGE._replace(total=1 << 26, free=1 << 26)
    monkeypatch.setattr(machine_checks.shutil, "disk_usage", lambda _: small)
    known = finding("/dev/shm")
    assert not known.helps
    assert known.advice == "docker run --shm-size=8g; or paceline train workers.kind=thread"


@pytest.mark.parametrize(
    ("allowed", "quota", "threads", "advice"),
    [
        ({0, 1, 2, 3}, math.inf, 4, ""),
        ({0, 1, 2, 3}, 1.5, 2, "docker run --cpus=4, limits.cpu: 4 in Kubernetes, or cpu.max"),
        ({0, 1}, math.inf, 2, "taskset --cpu-list 0-3 before it; in Slurm, --cpus-per-task=4"),
        ({0, 1, 2, 3}, math.inf, 1, "unset OMP_NUM_THREADS"),
    ],
    ids=["all", "quota", "mask", "variable"],
)
def test_cores_that_cannot_be_used_hurt(monkeypatch, allowed, quota, threads, advice):
    monkeypatch.setattr(machine_checks, "allowed_cores", lambda: allowed)
    monkeypatch.setattr(machine_checks.os, "cpu_count", lambda: 4)
    monkeypatch.setattr(host, "num_cores", lambda: min(len(allowed), math.ceil(min(quota, 9))))
    monkeypatch.setattr(host, "threads_per_rank", lambda: threads)
    monkeypatch.setattr(host.Cgroups, "cores", lambda _: quota)
    known = finding("cores")
    assert (known.advice, known.helps) == (advice, not advice)


@pytest.mark.parametrize(
    ("variable", "cuda", "advice"),
    [
        ("", "12.6", "unset CUDA_VISIBLE_DEVICES"),
        (None, None, "pip install --force-reinstall torch"),
        (None, "12.6", "install a driver for CUDA 12.6"),
    ],
    ids=["hidden", "torch", "driver"],
)
def test_a_gpu_that_torch_does_not_use_hurts(monkeypatch, tmp_path, variable, cuda, advice):
    driver = tmp_path / "version"
    driver.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  450.80.02  Wed\n")
    monkeypatch.setattr(machine_checks, "DRIVER", driver)
    monkeypatch.setattr(machine_checks.torch.version, "cuda", cuda)
    monkeypatch.setattr(machine_checks.torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if variable is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    known = finding("GPU")
    assert not known.helps
    assert known.advice.startswith(advice)
    assert known.figures["driver"] == "450.80.02"


def test_a_folder_that_cannot_be_written_is_a_finding(monkeypatch):
    def refuse(_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(machine_checks, "_write", refuse)
    known = finding("disk")
    assert not known.helps
    assert known.what.endswith("Permission denied")
