import os
from pathlib import Path

from framework.measure.host import machine, num_cores, peak_rss_bytes


def test_the_peak_of_memory_never_falls_and_sees_what_was_held():
    before = peak_rss_bytes()
    held = bytearray(b"x" * (before + (64 << 20) - _rss_bytes()))
    del held
    assert peak_rss_bytes() >= before + (32 << 20)


def _rss_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_cores_are_those_this_process_may_run_on():
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert num_cores() == 1
    finally:
        os.sched_setaffinity(0, before)
    assert num_cores() == len(before)


def test_the_machine_is_named_with_its_figures():
    facts = machine()
    assert facts.keys() == {"platform", "processor", "num_cores", "memory_bytes", "gpus"}
    assert facts["num_cores"] == num_cores()
    assert facts["memory_bytes"] > 1 << 28
    assert facts["platform"].startswith("Linux")
    assert facts["processor"]
