"""Keep a rank on the cores beside its GPU: memory and bus of another socket are slower."""

import os
from contextlib import suppress
from pathlib import Path

import torch

from framework.measure.host import run_on

SYSTEM = Path("/sys")
PCI = ("domain", "bus", "device")  # the parts of a GPU's address


def stay_beside(device: torch.device) -> None:
    """Let this rank, one of several on this host, run only on the cores of its GPU's NUMA node.

    Nothing happens if the system does not name the node, or if none of its cores is allowed. A host
    with one rank is left alone, because its workers may need all cores.
    """
    if device.type != "cuda" or int(os.environ.get("LOCAL_WORLD_SIZE", "1")) == 1:
        return
    # The node is -1 if there is only one. Some versions of torch do not know the bus.
    with suppress(OSError, ValueError, AttributeError):
        properties = torch.cuda.get_device_properties(device)
        domain, bus, number = (getattr(properties, f"pci_{name}_id") for name in PCI)
        gpu = SYSTEM / "bus/pci/devices" / f"{domain:04x}:{bus:02x}:{number:02x}.0"
        node = int((gpu / "numa_node").read_text(encoding="ascii"))
        text = (SYSTEM / f"devices/system/node/node{node}/cpulist").read_text(encoding="ascii")
        cores = _parsed(text) & os.sched_getaffinity(0)
        if cores and cores != os.sched_getaffinity(0):
            run_on(cores)


def _parsed(text: str) -> set[int]:
    """Return the numbers of a list such as ``0-3,8,10-11``."""
    numbers: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return numbers
