"""Continue a saved run: check that it learns the same, and load its state."""

from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from typing import Any

from framework.config.assemble import Assembly
from framework.config.build import last_line
from framework.config.resume import check_form, check_same
from framework.config.run_watchers import PATIENCE
from framework.errors import CheckpointError, PacelineError
from framework.train.trainer import Trainer


def restore(trainer: Trainer, assembly: Assembly, state: dict[str, Any]) -> bool:
    """Load ``state`` into ``trainer``.

    Returns:
        Whether the validation data differs from the saved run's. Its figures are dropped then,
        because figures of different data cannot be compared.

    Raises:
        CheckpointError: K103 if the state does not fit, K104 if an epoch under way was cut
            otherwise, K105 if the saved run learns something else.
    """
    resume = assembly.config["resume"]
    with fits_run(resume["run"]):
        return _restored(trainer, assembly, state)


@contextmanager
def fits_run(run: str) -> Generator[None]:
    """Turn any exception of a part that gets something else from a state into K103."""
    try:
        yield
    except PacelineError:
        raise
    except Exception as error:
        what = f"its state does not fit this configuration ({last_line(error)})"
        fix = (
            "resume with the model and optimizer it was saved with, "
            f"or begin a new run from its weights: init={run}"
        )
        raise CheckpointError(103, f"resume = {run}", what, fix) from error


def _restored(trainer: Trainer, assembly: Assembly, state: dict[str, Any]) -> bool:
    check_form(state)
    resume = assembly.config["resume"]
    anew = state["validation"] != assembly.validates
    if anew:
        state = {**state, "best": {}, "val": {}, "watching": _without_patience(state["watching"])}
    if state["ends"] != assembly.ends:  # what ends a run has been changed, maybe to go on
        state = {**state, "ended": "", "watching": {**state["watching"], "reason": ""}}

    loads = partial(_loads, trainer, assembly, state)
    check_same(resume["run"], state["learned"], assembly.learns, resume["allow"], loads)
    _load(trainer, state, resume["run"])
    if anew:
        trainer.stepper.forget_best()
    return anew


def _without_patience(watching: dict[str, Any]) -> dict[str, Any]:
    """Return what the watchers remember, but not the best metric on other validation data."""
    watchers = {name: own for name, own in watching["watchers"].items() if name != PATIENCE}
    return {**watching, "watchers": watchers}


def _loads(trainer: Trainer, assembly: Assembly, state: dict[str, Any]) -> bool:
    """Return whether the state can be loaded. The trainer is of no use afterwards."""
    key = "optim._target_"
    if state["learned"].get(key) != assembly.learns.get(key):
        return False  # torch would load another optimizer's state, and fail in the first step
    try:
        _load(trainer, state, assembly.config["resume"]["run"])
    except Exception:  # noqa: BLE001  # of any part that gets what another one has saved
        return False
    return True


def _load(trainer: Trainer, state: dict[str, Any], run: str) -> None:
    identity = trainer.parts.train.identity
    if state["progress"]["epoch_step"] and _places(state["order"]) != _places(identity):
        what = f"was saved inside an epoch of {state['order']}, this one has {identity}"
        fix = "change them when the epoch has ended"
        raise CheckpointError(104, f"resume = {run}", what, fix)
    trainer.load_state_dict(state)


def _places(identity: dict[str, int]) -> dict[str, int]:
    """Return what decides the records of each batch but the last, which ``last`` decides, too."""
    places = identity.get("places", identity["records"])
    return {**identity, "records": places, "places": places}
