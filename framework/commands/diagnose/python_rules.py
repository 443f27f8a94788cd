"""Rules about host time in the user's own Python."""

import os
from dataclasses import replace

from framework.commands.diagnose.facts import DiagnosisFacts, gain, load_of
from framework.commands.diagnose.host_python import LEAST_SHARE
from framework.commands.diagnose.verdict import Verdict

# The most that removing Python is said to gain: no measurement resolves what is left.
MOST_GAIN = 100.0


def python_in_model(facts: DiagnosisFacts) -> Verdict | None:
    """Detect that the model's own Python takes much of a step."""
    fix = (
        "Replace loops over elements by operators on whole tensors. compile=true removes Python "
        "between operators, if the model can be compiled."
    )
    return _in_step(facts, "model", fix, ("compute", "forward", "backward"))


def python_in_objective(facts: DiagnosisFacts) -> Verdict | None:
    """Detect that the objective's own Python takes much of a step."""
    fix = (
        "Compute with operators on whole tensors, and leave figures on the device: return tensors, "
        "which are read only at reports, in place of .item() in every step."
    )
    return _in_step(facts, "objective", fix, ("compute", "forward"))


def python_in_augment(facts: DiagnosisFacts) -> Verdict | None:
    """Detect that the augment's own Python takes much of a step."""
    fix = "Change the whole batch at once, with operators on [B, C, H, W], not record by record."
    return _in_step(facts, "augment", fix, ("copy",))


def python_in_transform(facts: DiagnosisFacts) -> Verdict | None:
    """Detect that the transform's or Dataset's own Python takes much of preparing a record."""
    python = facts.python
    if python is None or not facts.settings.has_function or not facts.slow_rate:
        return None
    if python.transform < LEAST_SHARE:
        return None
    load_s = _load_s_without(facts, python.transform)
    return Verdict(
        "python_in_transform",
        f"Python code of the {_owner(facts)} takes {100 * python.transform:.0f} % of preparing a "
        f"record{_lines(facts, 'transform')}.",
        "Use NumPy, OpenCV or torch on whole images in place of Python loops, or one of our "
        "transforms (transform=...), or move it to the device (augment=...).",
        gain(facts, load_s=max(load_s, 1e-9)),
        edit=_edit(facts, "transform"),
        parts=("wait",),
    )


def _owner(facts: DiagnosisFacts) -> str:
    """Return whose Python prepares records."""
    if facts.storage is not None and facts.storage.form == "dataset":
        return "Dataset"
    return "transform"


def _load_s_without(facts: DiagnosisFacts, share: float) -> float:
    """Return the seconds to prepare a batch without Python that takes a share of them."""
    if facts.rates.prepare_plain is not None:  # measured without the function
        return facts.settings.batch_size / facts.rates.prepare_plain
    return facts.load_s * (1 - share)


PARTS = ("forward",)
RULES = (python_in_model, python_in_objective, python_in_augment, python_in_transform)


def _in_step(facts: DiagnosisFacts, part: str, fix: str, spans: tuple[str, ...]) -> Verdict | None:
    if facts.python is None:
        return None
    of_busy = facts.python.step.get(part, 0.0)  # the share of a step that does not wait
    share = of_busy / facts.headroom
    if share < LEAST_SHARE:
        return None
    return Verdict(
        f"python_in_{part}",
        f"Python code of the {part} takes {100 * share:.0f} % of a step, outside of the operators "
        f"that it calls{_lines(facts, part)}.",
        fix,
        _gain_without(facts, _rest_s(facts, part, of_busy)),
        edit=_edit(facts, part),
        parts=spans,
    )


def _rest_s(facts: DiagnosisFacts, part: str, share: float) -> float:
    """Return what a step takes without waiting and without Python of a part.

    Beside such Python, which takes ``share`` of a step without waiting, other parts may take
    longer: threads that compute fall asleep meanwhile. So the rest is what was measured without it,
    if it was.
    """
    rates = facts.rates
    batch_size = facts.settings.batch_size
    busy_s = batch_size / rates.whole / facts.headroom
    beside_s = busy_s * (1 - share)
    if facts.python is None or facts.cuda or "copy" not in rates.spans_s:
        return beside_s
    # What was measured alone neither copies nor augments. Beside a loader, both take longer.
    copy_s = rates.spans_s["copy"] - rates.compute_spans_s.get("copy", 0.0)
    if part == "augment":
        return batch_size / rates.compute + max(0.0, copy_s - share * busy_s)
    if part not in facts.python.rest_s:
        return beside_s
    return facts.python.rest_s[part] + max(0.0, copy_s)


def _gain_without(facts: DiagnosisFacts, rest_s: float) -> float:
    """Return the gain of a step that takes ``rest_s`` without waiting and without such Python.

    Such Python also keeps its lock from the threads that prepare batches. Without it, a step waits
    no longer than the loader alone takes.
    """
    batch_size = facts.settings.batch_size
    step_s = batch_size / facts.rates.whole
    busy_s = step_s / facts.headroom
    left_s = max(min(busy_s, rest_s), busy_s / MOST_GAIN)
    after_s = left_s + min(step_s - busy_s, batch_size / facts.rates.loader)
    load = load_of(facts)
    if load is not None:
        after_s = max(after_s, replace(load, compute_s=left_s).step_s)
    return step_s / min(step_s, after_s)


def _lines(facts: DiagnosisFacts, part: str) -> str:
    """Return the largest line, as the end of a sentence."""
    assert facts.python is not None
    lines = facts.python.of(part)
    if not lines:
        return ""
    place = f"{os.path.relpath(lines[0].file)}:{lines[0].line}"
    return f", most of it in {place} ({lines[0].function})"


def _edit(facts: DiagnosisFacts, part: str) -> str:
    """Return where to change code."""
    assert facts.python is not None
    lines = facts.python.of(part)
    if not lines:
        return f"the {part} anew, without Python loops"
    line = lines[0]
    return f"{os.path.relpath(line.file)}:{line.line} anew: {line.text}"
