"""Whether all ranks are about to do the same: a rank with another copy of the data, or other code, would spoil the weights of all."""

import json
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path

import torch

import framework
from framework.contracts.parallel import Parallel
from framework.errors import DistributedError

Facts = Mapping[str, float | str | None]


@cache
def code_digest() -> str:
    """Of the source of this package: what is installed here, whatever its version says."""
    digest, root = sha256(), Path(framework.__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def check_agreement(parallel: Parallel, facts: Facts) -> None:
    """Compare ``facts`` of all ranks with rank 0's; to be called by all. DistributedError P105, on every rank, names keys and rank."""
    if parallel.world_size == 1:
        return
    mine = torch.frombuffer(bytearray(json.dumps(dict(facts)).encode()), dtype=torch.uint8)
    leader, *others = (json.loads(bytes(one.tolist())) for one in parallel.gather(mine))
    for rank, found in enumerate(others, 1):
        keys = [
            key for key in dict.fromkeys([*leader, *found]) if leader.get(key) != found.get(key)
        ]
        if keys:
            told = ", ".join(
                f"{key} ({found.get(key)}, rank 0 has {leader.get(key)})" for key in keys
            )
            fix = "give every rank the same code, packages and copy of the data"
            raise DistributedError(
                105, f"rank {rank}", f"is about to do something else: {told}", fix
            )
