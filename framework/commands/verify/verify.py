"""``paceline verify STORE [STORE ...]``: compare every record with its checksum."""

from typing import Any

from omegaconf import DictConfig

from framework.cli.arguments import plain_words_alone, quoted
from framework.cli.hydra_app import resolved, run_app
from framework.cli.outcome import RunOutcome, told
from framework.config.rule import Rule, check_values
from framework.errors import ConfigError, DataError, say
from framework.system.stopping import message_if_stopped

RULES = {"stores": Rule(list[str], means="a list of paths"), "workers": Rule(int | None, 0)}

NO_STORE = ("error[D101]", "error[D103]")  # nothing is there, or another program's file


def main(arguments: list[str]) -> int:
    """Run the command. Words that are not overrides are the paths of the stores."""
    if arguments[:1] != ["-sc"] and (plain := plain_words_alone(arguments, "stores")):
        stores = f"stores=[{','.join(map(quoted, plain))}]"
        arguments = [*(word for word in arguments if word not in plain), stores]
    return run_app("verify", arguments, lambda cfg: told(lambda _: _verify(cfg)))


def _verify(cfg: DictConfig) -> RunOutcome:
    config: dict[str, Any] = resolved(cfg)
    check_values(config, RULES)
    stores = config["stores"]
    if not stores:
        fix = "give 'paceline verify STORE [STORE ...]'"
        raise ConfigError(101, f"stores = {stores}", "names nothing", fix)
    with message_if_stopped("stopped{by}: not all was verified"):
        return _verify_all(stores, config["workers"])


def _verify_all(stores: list[str], workers: int | None) -> RunOutcome:
    # This loads torch, which a wrong key should not have to wait for.
    from framework.cli.progress import progress_bar  # noqa: PLC0415
    from framework.measure.host import num_cores  # noqa: PLC0415
    from framework.pack.engine.verify_store import verify  # noqa: PLC0415

    if workers is None:
        workers = num_cores()
    num_wrong = num_records = num_bad = 0
    no_stores: list[str] = []
    for store in stores:
        with progress_bar(store) as (_, tell):
            report = verify(store, workers, tell)
        for line in report.findings:
            say(line)
        ending = "nothing is wrong"
        if report.num_bad:
            ending = f"{report.num_bad} records are bad"
        elif report.findings:
            ending = "it is bad"
        size = f"{report.num_records} records, {report.num_bytes:,} bytes"
        say(f"{store}: {size}: {ending}")
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
