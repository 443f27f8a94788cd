"""``paceline verify STORE [STORE ...]``: compare every record with its checksum."""

from dataclasses import dataclass
from pathlib import Path

from framework.cli.outcome import RunOutcome, option, run_options
from framework.errors import ConfigError, DataError, say
from framework.system.stopping import message_if_stopped

NO_STORE = ("error[D101]", "error[D103]")  # nothing is there, or another program's file


@dataclass(frozen=True)
class VerifyOptions:
    """Compare every record of stores with its checksum."""

    stores: list[str] = option(
        about="the stores; 'paceline verify FILE ...' is short for stores=[FILE,...]",
        means="a list of paths",
    )
    workers: int | None = option(None, "processes that read; null: one per core, 0: none", least=0)


def main(arguments: list[str]) -> int:
    """Run the command. Words that are not overrides are the paths of the stores."""
    return run_options("verify", arguments, VerifyOptions, _verify, plain="stores")


def _verify(options: VerifyOptions, _: Path) -> RunOutcome:
    stores = options.stores
    if not stores:
        fix = "give 'paceline verify STORE [STORE ...]'"
        raise ConfigError(101, f"stores = {stores}", "names nothing", fix)
    # This loads torch, which a wrong key should not have to wait for.
    from framework.cli.tables import progress_bar  # noqa: PLC0415
    from framework.measure.host import num_cores  # noqa: PLC0415
    from framework.pack.verify_store import verify  # noqa: PLC0415

    workers = num_cores() if options.workers is None else options.workers
    num_wrong = num_records = num_bad = 0
    no_stores: list[str] = []
    for store in stores:
        with message_if_stopped("stopped{by}: not all was verified"), progress_bar(store) as bar:
            report = verify(store, workers, bar[1])
        for line in report.findings:
            say(line)
        ending = "nothing is wrong"
        if report.num_bad:
            ending = f"{report.num_bad} records are bad"
        elif report.findings:
            ending = "it is bad"
        say(f"{store}: {report.num_records} records, {report.num_bytes:,} bytes: {ending}")
        no_stores += [line for line in report.findings if line.startswith(NO_STORE)]
        num_wrong += bool(report.findings)
        num_records += report.num_records
        num_bad += report.num_bad
    bad = f"{num_wrong} stores and {num_bad} records are bad"
    say(f"verified {len(stores)} stores, {num_records} records: {bad}")
    if not num_wrong:
        return RunOutcome(0, "verified")
    if len(no_stores) == len(stores):  # nothing was compared
        return RunOutcome(DataError.exit_code, no_stores[0])
    what = f"{num_wrong} of {len(stores)} stores are not what was packed"
    error = DataError(156, "verify", what, "pack them again from the source")
    return RunOutcome(error.exit_code, str(error))
