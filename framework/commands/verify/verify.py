"""``paceline verify STORE [STORE ...]``: every record against its checksum."""

from typing import Any

from omegaconf import DictConfig

from framework.cli.arguments import plain_words, quoted
from framework.cli.hydra_app import resolved, run_app
from framework.cli.outcome import RunOutcome, told
from framework.commands.pack.pack import check_workers
from framework.errors import ConfigError, DataError, printable
from framework.system.stopping import reason


def main(arguments: list[str]) -> int:
    """The command; words that are not overrides are the stores' paths."""
    plain = plain_words(arguments)
    if arguments[:1] == ["-sc"] or not plain:
        return run_app("verify", arguments, _job)
    stores = f"stores=[{','.join(map(quoted, plain))}]"
    return run_app("verify", [*(word for word in arguments if word not in plain), stores], _job)


def _job(cfg: DictConfig) -> int:
    return told(lambda _: _verify(cfg))


def _verify(cfg: DictConfig) -> RunOutcome:
    config: dict[str, Any] = resolved(cfg)
    check_workers(config["workers"])
    stores = config["stores"]
    if (
        not isinstance(stores, list)
        or not stores
        or not all(isinstance(store, str) for store in stores)
    ):
        raise ConfigError(
            101,
            f"stores = {stores}",
            "not a list of stores",
            "give 'paceline verify STORE [STORE ...]'",
        )
    with reason("stopped{by}: not all was verified"):
        return _verify_all(stores, config["workers"])


def _verify_all(stores: list[str], workers: int | None) -> RunOutcome:
    from framework.cli.progress import progress_bar  # noqa: PLC0415  # loads torch
    from framework.measure.host import num_cores  # noqa: PLC0415
    from framework.pack.engine.verify_store import verify  # noqa: PLC0415

    wrong = num_records = num_bad = 0
    for store in stores:
        with progress_bar(store) as (_, tell):
            found = verify(store, num_cores() if workers is None else workers, tell)
        for line in found.findings:
            print(printable(line))
        ends = (
            f"{found.num_bad} records are bad"
            if found.num_bad
            else "it is bad"
            if found.findings
            else "nothing is wrong"
        )
        print(
            f"{printable(store)}: {found.num_records} records, {found.num_bytes:,} bytes: {ends}",
            flush=True,
        )
        wrong, num_records, num_bad = (
            wrong + bool(found.findings),
            num_records + found.num_records,
            num_bad + found.num_bad,
        )
    print(
        f"verified {len(stores)} stores, {num_records} records: {wrong} stores and {num_bad} records are bad"
    )
    if not wrong:
        return RunOutcome(0, "verified")
    what = f"{wrong} of {len(stores)} stores are not what was packed"
    return RunOutcome(
        DataError.exit_code, str(DataError(156, "verify", what, "pack them again from the source"))
    )
