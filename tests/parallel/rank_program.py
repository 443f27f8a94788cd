"""What a rank does: ``python -m tests.parallel.rank_program PROGRAM FOLDER`` leaves RANK.json."""

import copy
import json
import os
import random
import signal
import sys
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from framework.contracts.data import MicroBatch
from framework.contracts.training import Outcome, Watcher
from framework.errors import ConfigError
from framework.objective import classify, segment
from framework.parallel import fsdp, start_ranks
from framework.parallel.ddp import DistributedParallel, warm_up_ddp
from framework.parallel.virtual import VirtualParallel
from framework.precision.fp32 import FP32
from framework.system.stopping import die_with_parent, leave, set_all
from framework.train.parts import evaluate
from framework.train.watching import EarlyStop, Goal, Idle, Watching
from tests.contract.parallel_facts import facts_of
from tests.fakes import FakeClock, FakeLoader, make_data, make_model, make_trainer
from tests.train.counted import BATCH_SIZE, EPOCHS, half_labelled
from tests.train.owned import ByCenters, trainer_of

CPU = torch.device("cpu")
KINDS = ("2d", "1d", "cumulative", "plain", "untracked")
SPLITS = (3, 6)  # records of rank 0 among seven: nearly even, and one left for rank 1
RANK = int(os.environ.get("RANK", "0"))
torch.set_num_threads(1)


def parallel(sync_batch_norm=False):
    return DistributedParallel(2, sync_batch_norm, timeout_s=60.0, device=CPU)


def flat(tensors):
    reals = [
        torch.view_as_real(item.detach()) if item.is_complex() else item.detach()
        for item in tensors
    ]
    return [value for tensor in reals for value in tensor.double().flatten().tolist()]


def gradients(module):
    return flat(parameter.grad for parameter in module.parameters())


def gradients_by_name(module):
    """Return the gradients of those parameters that have one."""
    named = module.named_parameters()
    return {name: flat([own.grad]) for name, own in named if own.grad is not None}


# ---- talk


def talk(_):
    """Share a text and a flag that is set once, and return what this rank sees."""
    text = start_ranks.share_text(json.dumps({"seed": 7}) if RANK == 0 else None)
    ranks = parallel()
    once = [ranks.agree(RANK == 0 and call == 3)[0] for call in range(40)]
    ranks.close()
    return {"text": text, "once": once}


WAYS = {"plain": {}, "static": {"static_graph": True}, "small": {"bucket_mb": 0.001}}


def options(_):
    """Return a step's gradients for each way of sending them."""
    ranks, facts = parallel(), {}
    for name, changes in WAYS.items():
        vars(ranks).update({"static_graph": False, "bucket_mb": 25, "compress": "none"} | changes)
        torch.manual_seed(0)
        model = ranks.wrap(nn.Sequential(nn.Linear(30, 40), nn.Linear(40, 1)))
        torch.manual_seed(RANK)
        # the first pass learns a static graph, and must exchange
        model(torch.randn(4, 30)).square().mean().backward()
        model.zero_grad()
        for number in range(2):
            with ranks.accumulate(model, number == 1):
                model(torch.randn(4, 30)).square().mean().backward()
        facts[name] = gradients(model)
    ranks.close()
    return facts


def thaw(_):
    """Return the gradients of two steps, before and after the first layer thaws."""
    ranks, facts = parallel(), []
    torch.manual_seed(0)
    inside = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    inside[0].requires_grad_(False)
    model = ranks.wrap(inside)
    inputs = torch.randn(2, 5, 3)  # rank
    for _ in range(2):
        model(inputs[RANK]).square().mean().backward()
        facts.append([None if p.grad is None else flat([p.grad]) for p in inside.parameters()])
        model.zero_grad(set_to_none=True)
        inside[0].requires_grad_(True)
        model = ranks.rewrap(model)
    plain = copy.deepcopy(inside)
    plain(inputs.flatten(0, 1)).square().mean().backward()
    expected = [flat([item.grad]) for item in plain.parameters()]
    facts_of_rank = {"seen": facts, "expected": expected, "inside": ranks.unwrap(model) is inside}
    ranks.close()
    return facts_of_rank


class Choosing(nn.Module):
    """A layer for every input, one for large sums, and one that nothing uses."""

    def __init__(self):
        super().__init__()
        self.always, self.seldom, self.never = (nn.Linear(3, 3) for _ in range(3))
        self.large_sum, self.boxed = 1.0, False

    def forward(self, x):
        outputs = self.always(x)
        if x.sum() >= self.large_sum:
            outputs = self.seldom(outputs)
        return SimpleNamespace(outputs=outputs) if self.boxed else outputs


def squares(model, batch):
    """Be an objective without a target."""
    outputs = model(batch)
    return SimpleNamespace(loss=getattr(outputs, "outputs", outputs).square().mean())


def unused(_):
    """Learn in two passes a step with layers that some passes leave out. Return errors, too."""
    ranks = parallel()
    ranks.find_unused = True
    torch.manual_seed(0)
    inside = Choosing()
    twin, start = copy.deepcopy(inside), flat(inside.never.parameters())
    inputs = torch.randn(6, 2, 2, 4, 3)  # step, pass, rank
    sums = inputs.sum((3, 4))
    learn_choosing(inside, inputs[:, :, RANK], ranks)
    learn_choosing(twin, inputs.flatten(1, 2), None)
    errors = [error_of_unused(ranks, find, boxed) for find, boxed in ((False, False), (True, True))]
    ranks.find_unused = False
    model = ranks.wrap(Choosing())
    facts = {
        "learned": flat(inside.parameters()),
        "expected": flat(twin.parameters()),
        "never": flat(inside.never.parameters()) == start,
        "large": (sums >= 1.0).tolist(),
        "errors": [*errors, error_of_late_change(ranks, model)],
    }
    ranks.close()
    return facts


def learn_choosing(inside, inputs, ranks):
    """Take steps with momentum and decay, of all passes of a step, on ranks or alone."""
    model = ranks.wrap(inside) if ranks else inside
    optimizer = torch.optim.SGD(inside.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    weight = 1 if ranks else 1 / 2  # ranks add their passes, and take the mean over ranks
    for step in inputs:
        for number, x in enumerate(step):
            last = number == len(step) - 1
            with ranks.accumulate(model, last) if ranks else nullcontext():
                (model(x).square().mean() * weight).backward()
        optimizer.step()
        optimizer.zero_grad()


def error_of_unused(ranks, find_unused, boxed):
    """Return the error before the first step."""
    ranks.find_unused = find_unused
    inside = Choosing()
    inside.boxed = boxed
    return error_of(warm_up_ddp, ranks.wrap(inside), squares, FP32(False, device=CPU), ones(), CPU)


def error_of_late_change(ranks, model):
    """Return the error of a step that leaves a layer out, which is known in the next one."""
    model.module.never.requires_grad_(False)
    model = ranks.rewrap(model)

    def step(x):
        with ranks.accumulate(model, True):
            squares(model, x).loss.backward()

    step(ones())
    step(-ones())
    return error_of(step, ones())


def error_of(function, *arguments):
    try:
        function(*arguments)
    except ConfigError as error:
        return str(error)


def ones():
    return torch.ones(2, 3)


# ---- batch norm


def make_net(kind):
    torch.manual_seed(0)
    conv = nn.Conv1d if kind == "1d" else nn.Conv2d
    norm = make_norm(kind)
    net = nn.Sequential(conv(2, 3, 3, bias=False), norm, conv(3, 1, 1))
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.copy_(torch.rand(parameter.shape) + 0.5)
    return net.double() if kind == "double" else net


def make_norm(kind):
    torch.manual_seed(1)
    return {
        "2d": lambda: nn.BatchNorm2d(3),
        "1d": lambda: nn.BatchNorm1d(3),
        "cumulative": lambda: nn.BatchNorm2d(3, momentum=None),
        "plain": lambda: nn.BatchNorm2d(3, affine=False),
        "double": lambda: nn.BatchNorm2d(3).double(),
        "untracked": lambda: nn.BatchNorm2d(3, track_running_stats=False),
    }[kind]()


def make_input(kind):
    torch.manual_seed(2)
    x = (torch.randn(7, 2, 6) if kind == "1d" else torch.randn(7, 2, 5, 4)) * 3 + 1
    return x.double() if kind == "double" else x


def learn(net, x, weight):
    """Compute the gradients of a training pass, and return its outputs."""
    outputs = net(x)
    (outputs.square().mean() * weight).backward()
    return outputs


def learn_mine(ranks, kind, first):
    """Train on this rank's part of seven records, of which rank 0 has the ``first``."""
    net, whole = ranks.wrap(make_net(kind)), make_input(kind)
    mine = whole[:first] if RANK == 0 else whole[first:]
    outputs = learn(net, mine, len(mine) * 2 / len(whole))
    inside = ranks.unwrap(net)
    return {
        "outputs": flat([outputs]),
        "gradients": gradients(inside),
        "buffers": flat(inside.buffers()),
        "evaluated": flat([inside.eval()(mine)]),
    }


def batch_norm(_):
    """Return the facts of every kind and split, or the error of those that are not possible."""
    ranks, facts = parallel(sync_batch_norm=True), {}
    for kind in (*KINDS, "double"):
        for first in SPLITS:
            try:
                facts[f"{kind}-{first}"] = learn_mine(ranks, kind, first)
            except RuntimeError as error:
                facts[f"{kind}-{first}"] = {"error": str(error)}
    ranks.close()
    return facts


# ---- fail


def fail(folder):
    """Exit with code 7 on rank 1, while rank 0 would wait for a long time."""
    (folder / f"pid.{RANK}").write_text(str(os.getpid()))
    while len(list(folder.glob("pid.*"))) < 2:
        time.sleep(0.01)
    if RANK == 1:
        sys.exit(7)
    time.sleep(600)


def wait(folder):
    """Note that this rank is up, and wait as ranks do for each other before their first step."""
    (folder / f"pid.{RANK}").write_text(str(os.getpid()))
    time.sleep(600)


def stumble(folder):
    """Let the ranks meet, then exit with code 7 on rank 1 at the first two starts."""
    count = os.environ["TORCHELASTIC_RESTART_COUNT"]
    (folder / f"start.{RANK}.{count}").touch()
    ranks = parallel()
    total = ranks.total(torch.ones(1, dtype=torch.float64)).tolist()
    if RANK == 1 and int(count) < 2:
        os._exit(7)
    ranks.close()
    return {"total": total}


class Blocks(nn.Module):
    """Modules of several sizes, some in lists."""

    def __init__(self):
        super().__init__()
        self.large, self.small = nn.Linear(20, 40), nn.ModuleList([nn.Linear(40, 4)])
        self.inner = nn.Sequential(nn.Linear(4, 30), nn.ReLU(), nn.Linear(30, 1))

    def forward(self, x):
        return self.inner(self.small[0](self.large(x)))


def sharded(_):
    """Return facts of two sharded passes beside ddp's gradients, of memory and of states."""
    ranks = fsdp.ShardedParallel(2, False, timeout_s=60.0, unit_parameters=100, device=CPU)
    torch.manual_seed(0)
    expected = flat(Blocks().parameters())
    torch.manual_seed(RANK)
    model = Blocks()
    names = {id(module): name for name, module in model.named_modules()}
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    units = []
    for least in (500, 100):
        ranks.unit_parameters = least
        units.append([names[id(unit)] for unit in ranks._units(model)])
    model = ranks.wrap(model)
    optimizer = torch.optim.AdamW(model.parameters())
    facts = {
        "expected_start": expected,
        "start": flat(ranks.gather_state(dict(model.state_dict())).values()),
        "sizes": sizes,
        "units": units,
    }
    facts["kept"] = sum(parameter.to_local().numel() for parameter in model.parameters())
    torch.manual_seed(0)
    twin = DistributedDataParallel(Blocks())
    inputs = torch.randn(2, 2, 3, 20)  # pass, rank
    for number in range(2):
        with ranks.accumulate(model, number == 1):
            model(inputs[number, RANK]).square().mean().backward()
        with nullcontext() if number else twin.no_sync():
            twin(inputs[number, RANK]).square().mean().backward()
    facts |= {
        "gradients": flat(p.grad.full_tensor() for p in model.parameters()),
        "of_ddp": gradients(twin.module),
    }
    optimizer.step()
    state = ranks.gather_state(
        {"model": model.state_dict(), "average": None, "optimizer": optimizer.state_dict()}
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    other = torch.optim.AdamW(model.parameters())
    parts = ranks.shard_state(state, model, other)
    model.load_state_dict(parts["model"])
    other.load_state_dict(parts["optimizer"])
    again = ranks.gather_state(
        {"model": model.state_dict(), "average": None, "optimizer": other.state_dict()}
    )
    texts = [json.dumps(each, default=lambda value: value.tolist()) for each in (state, again)]
    facts["comes_back"] = texts[0] == texts[1]
    ranks.close()
    return facts


class Drawing(nn.Module):
    """Batch norm, a parameter nobody uses, one for large inputs, and three drawn numbers a pass."""

    def __init__(self):
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(2), nn.Linear(2, 1)
        self.unused = nn.Parameter(torch.ones(3))
        self.turn = nn.Parameter(torch.polar(torch.ones(2), torch.tensor([0.5, 1.5])))
        self.seldom, self.large_sum = nn.Parameter(torch.ones(1)), torch.inf
        self.drawn = []
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("drawn_once", torch.zeros((), dtype=torch.int64))
        # constants that no mean over parts would keep
        self.register_buffer("mask", torch.tensor([-torch.inf, torch.finfo(torch.float32).max]))
        self.register_buffer("large", torch.tensor(2**40 + 1))

    def forward(self, x):
        self.calls = self.calls + 1  # another tensor, as some models do it
        self.drawn_once.add_(int(x.sum() * 1000))  # each part would count something else
        numpy = float(np.random.rand())  # noqa: NPY002
        self.drawn.append([*torch.rand(1).tolist(), random.random(), numpy])
        outputs = self.head(self.norm(x) * torch.view_as_real(self.turn.square()).sum(1))
        return outputs * self.seldom if x.sum() >= self.large_sum else outputs


def take_step(ranks, model, inputs):
    """Take a step of four virtual ranks, two here. Return gradients and if none stayed."""
    mine, left = inputs[2 * RANK : 2 * RANK + 2], []
    for number, x in enumerate(mine):
        with ranks.accumulate(model, number == 1):
            model(x).square().mean().backward()
        if number == 0:
            left.append(all(item.grad is None for item in model.parameters()))
    facts = gradients_by_name(model)
    model.zero_grad(set_to_none=True)
    return facts, left


def virtual(_):
    """Take steps of four virtual ranks on two, and return facts beside those of one process."""
    ranks = VirtualParallel(2, virtual_ranks=4, num_threads=1, timeout_s=60.0, device=CPU)
    torch.manual_seed(RANK)
    own_start = flat((model := Drawing()).parameters())
    model = ranks.wrap(model)
    torch.manual_seed(3)
    inputs = torch.randn(4, 6, 2)
    model.large_sum = inputs.sum((1, 2)).max()
    twin = copy.deepcopy(model)
    start = flat(model.parameters())
    for x in inputs:
        (twin(x).square().mean() / 4).backward()
    means = [0.1 * inputs.mean((0, 1)) * (0.9**step) for step in range(2)]  # momentum 0.1, twice
    taken, between = take_step(ranks, model, inputs)
    take_step(ranks, model, inputs)
    facts = {
        "own_start": own_start,
        "start": start,
        "gradients": taken,
        "expected_gradients": gradients_by_name(twin),
        "between": between,
        "running_mean": flat([model.norm.running_mean]),
        "expected_mean": flat([sum(means)]),
        "counted": int(model.norm.num_batches_tracked),
        "calls": float(model.calls),
        "whole_number": int(model.drawn_once),
        "expected_whole_number": 2 * int(inputs[0].sum() * 1000),
        "constants": [*map(str, model.mask.tolist()), int(model.large)],
        "drawn": list(model.drawn),
    }
    try:
        with ranks.accumulate(model, False):
            raise ValueError
    except ValueError:
        pass
    facts["after_failure"], _ = take_step(ranks, model, inputs)
    facts["refused"] = [refused(ranks, model, each) for each in (renormalize, register, reshape)]
    try:
        ranks.wrap(nn.SyncBatchNorm(2))
    except ConfigError as error:
        facts["refused"].append(str(error))
    ranks.close()
    return facts


def renormalize(model):
    with torch.no_grad():
        model.head.weight.clamp_(-1, 1)


def register(model):
    model.register_buffer("late", torch.zeros(1))


def reshape(model):
    del model.late
    model.calls = model.calls.repeat(3)


def refused(ranks, model, forward):
    """Return the error of a pass that must be refused."""
    try:
        with ranks.accumulate(model, True):
            forward(model)
    except ConfigError as error:
        return str(error)


def save_slowly(_):
    """Let rank 0 save for longer than ranks wait for each other."""
    ranks = DistributedParallel(num_processes=2, sync_batch_norm=False, timeout_s=2.0, device=CPU)
    if RANK == 0:
        time.sleep(5.0)
    ranks.wait()
    total = ranks.total(torch.ones(1, dtype=torch.float64)).tolist()
    ranks.close()
    return {"total": total}


def hang_in_a_save(folder):
    """Hang in a save on rank 1. Return the error of rank 0, which gives up in the usual time."""
    ranks = DistributedParallel(num_processes=2, sync_batch_norm=False, timeout_s=2.0, device=CPU)
    if RANK == 1:
        for _ in range(600):
            time.sleep(0.05)
            if (folder / "0.json").exists():
                break
        return {}
    try:
        ranks.wait()
    except RuntimeError as error:
        return {"fault": str(error)}
    return {"fault": None}


def logits_and_classes():
    """Return a model's logits for ten records of three classes, and the classes."""
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(10, 3, generator=generator)
    return {"x": logits, "y": torch.randint(3, (10,), generator=generator)}


def watch(_):
    """Return metrics over all ranks, and the ends of runs that rank 0 wants to end."""
    ranks = parallel()
    facts = {
        "metrics": metrics_of_ranks(ranks),
        "after_validation": ended(ranks, EarlyStop(1, Goal("loss", False))),
        "after_report": ended(ranks, Impatient()),
    }
    ranks.close()
    return facts


def metrics_of_ranks(ranks):
    """Return metrics of all ranks; the last batch has two records, too few for three."""
    from torchmetrics import classification as kinds

    from framework.train.torch_metrics import TorchMetrics

    share = {"rank": RANK, "world_size": ranks.world_size}
    loader = FakeLoader(logits_and_classes(), 4, **share)
    named = {
        "macro_f1": kinds.MulticlassF1Score(3, average="macro"),
        "auroc": kinds.MulticlassAUROC(3),
        "confusion": kinds.MulticlassConfusionMatrix(3),
    }
    parts = FP32(False, device=CPU), FakeClock(), ranks, TorchMetrics(named, ranks)
    results = evaluate(nn.Identity(), loader.epoch(0), with_confusion, *parts)
    arrays = {name: array.tolist() for name, array in results.arrays.items()}
    return {**results.means, **arrays, "count": results.num_records}


def with_confusion(model, batch):
    """Classify, with a confusion matrix of its own."""
    outcome = classify.Classify("x", "y", 0.0)(model, batch)
    outcome.sums["own"] = segment.confusion_of(batch["x"].argmax(1), batch["y"], 3)
    return outcome


class Impatient(Watcher):
    """Ends a run after its first report."""

    def after_report(self, moment):
        return f"step {moment.step} is enough"


def ended(ranks, watcher):
    """Train, and return the step after which the run ends on this rank, and why."""
    share = {"order": {"rank": RANK, "world_size": ranks.world_size}, "parallel": ranks}
    watching = Watching({"it": watcher if RANK == 0 else Idle()}, ranks)
    val = FakeLoader(make_data(5), 4, rank=RANK, world_size=ranks.world_size)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    given = {"model": ranks.wrap(model), "optimizer": optimizer, "val": val, **share}
    trainer = make_trainer(make_data(60), 3, watching=watching, report_every=2, epochs=4, **given)
    trainer.fit()
    return [trainer.progress.step, trainer.ended]


def contract(_):
    return facts_of(parallel())


class UnevenLoader(FakeLoader):
    """Ready batches, of which rank 0 brings most records and rank 1 the others."""

    def epoch(self, epoch, start=0):
        for batch, weight, last in super().epoch(epoch, start):
            cut = 7 * len(batch["x"]) // 10
            own = slice(cut) if RANK == 0 else slice(cut, None)
            yield MicroBatch({name: values[own] for name, values in batch.items()}, weight, last)


def trained_on_uneven_batches(objective, data):
    ranks = parallel()
    model = ranks.wrap(make_model())
    parts = {"model": model, "train": UnevenLoader(data, BATCH_SIZE), "objective": objective}
    plan = {"epochs": EPOCHS, "report_every": 100, "sums_records": True}
    trainer = make_trainer(data, parallel=ranks, **parts, **plan)
    trainer.fit()
    ranks.close()
    return flat(model.parameters())


def every_record(model, batch):
    """Return a mean over all records, and no count."""
    return Outcome(nn.functional.cross_entropy(model(batch["x"]), batch["y"]), {})


def trained_on_what_counts(ranks):
    """Train on records of which some have no label, and return the weights."""
    order = {"rank": RANK, "world_size": ranks.world_size, "accumulate": 2}
    if isinstance(ranks, VirtualParallel):
        order["virtual_ranks"] = ranks.virtual_ranks
    model = ranks.wrap(make_model())
    parts = {"order": order, "model": model, "parallel": ranks}
    plan = {"epochs": EPOCHS, "report_every": 100}
    trainer = make_trainer(half_labelled(), BATCH_SIZE, **parts, **plan)
    trainer.fit()
    state = ranks.gather_state(dict(ranks.unwrap(model).state_dict()))
    ranks.close()
    return flat(state.values())


def counted(_):
    options = {"timeout_s": 60.0, "device": CPU}
    kinds = {
        "ddp": parallel,
        "fsdp": partial(fsdp.ShardedParallel, 2, False, unit_parameters=100, **options),
        "virtual": partial(VirtualParallel, 2, virtual_ranks=4, num_threads=1, **options),
    }
    return {
        **{name: trained_on_what_counts(make()) for name, make in kinds.items()},
        "uneven": trained_on_uneven_batches(classify.Classify("x", "y", 0.0), half_labelled()),
        "no count": trained_on_uneven_batches(every_record, make_data(24)),
    }


def owned(_):
    """Train an objective's weights, and continue what each rank remembers beside them."""
    ranks = parallel()
    objective = ByCenters(seed=5 + RANK)  # ranks begin with the weights of rank 0
    objective.own = []
    trainer = trainer_of(objective, ranks, order={"rank": RANK, "world_size": 2})
    trainer.fit()
    objective.own.append(RANK)
    state = trainer.state_dict()
    objective.own = []
    trainer.load_state_dict(state)
    ranks.close()
    centers = objective.centers
    return {"weights": flat([centers.weights]), "mean": flat([centers.mean]), "own": objective.own}


def counted_by_three(_):
    return {"ddp": trained_on_what_counts(parallel())}


# programs that leave their process as it was, and so share it; ranks share texts before a group
ALL = (talk, contract, options, thaw, unused, batch_norm, watch, sharded, virtual, counted, owned)


def run_all(folder):
    return {program.__name__: program(folder) for program in ALL}


ALONE = (counted_by_three, watch, fail, save_slowly, hang_in_a_save, stumble, wait)


def main(name, folder):
    programs = {"all": run_all, **{program.__name__: program for program in ALONE}}
    facts = programs[name](Path(folder))
    (Path(folder) / f"{RANK}.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    die_with_parent()
    set_all(signal.SIG_DFL)  # the launcher starts ranks with signals held back
    main(*sys.argv[1:])
    leave(0)
