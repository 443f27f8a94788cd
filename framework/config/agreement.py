"""Check that all ranks are about to do the same.

A rank with another copy of the data, or with other code, would spoil the weights of all.
"""

import json
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

import framework
from framework.contracts.parallel import Parallel
from framework.errors import DistributedError

Facts = Mapping[str, float | str | None]


@cache
def code_digest() -> str:
    """Return a digest of this package's source, whatever its version says."""
    digest = sha256()
    root = Path(framework.__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def gathered(parallel: Parallel, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the plain values of all ranks in rank order. All ranks call it together."""
    mine = torch.frombuffer(bytearray(json.dumps(dict(values)).encode()), dtype=torch.uint8)
    return [json.loads(bytes(data.tolist())) for data in parallel.gather(mine)]


def check_agreement(parallel: Parallel, facts: Facts) -> None:
    """Compare the facts of all ranks with rank 0's. All ranks call it together.

    Raises:
        DistributedError: P105, on every rank, with the rank and the facts that differ.
    """
    if parallel.world_size == 1:
        return
    leader, *others = gathered(parallel, facts)
    for rank, other in enumerate(others, 1):
        differences = [
            f"{key} ({other.get(key)}, rank 0 has {leader.get(key)})"
            for key in dict.fromkeys([*leader, *other])
            if leader.get(key) != other.get(key)
        ]
        if differences:
            what = f"is about to do something else: {', '.join(differences)}"
            fix = "give every rank the same code, packages and copy of the data"
            raise DistributedError(105, f"rank {rank}", what, fix)
