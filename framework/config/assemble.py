"""Build those parts of a run that deliver its data, from its configuration.

``training_parts.py`` adds the model and the parts that train it.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from functools import cache, cached_property, partial
from hashlib import sha256
from pathlib import Path
from typing import Any, final

import torch
from torch import nn

import framework
from framework.augment.compose import Finish, finish_with
from framework.config import auto, init_weights, resume, targets
from framework.config.build import NUM_SAMPLES, build, takes_optimizer
from framework.config.targets import Config, split_of, val_sets
from framework.contracts import data as contracts
from framework.contracts.batch import Batch
from framework.contracts.class_labels import LabelCheck
from framework.contracts.data import Augment, Source, SourceContext
from framework.contracts.loader import Clock, Loader, LoaderContext
from framework.contracts.parallel import Parallel
from framework.contracts.records import Manifest
from framework.contracts.waits import Waits
from framework.data.fields import followers, with_agreed_classes
from framework.data.source import LiveTuning
from framework.errors import ConfigError, DistributedError, Say, say, words_of
from framework.measure.clock import ENDING, ProfiledClock, make_clock
from framework.measure.host import cores_per_rank, stay_on_gpu_node
from framework.order.batches import Order
from framework.order.sampler import SamplerOrder
from framework.order.select import Fold
from framework.system.memory import keep_freed_memory, use
from framework.system.rng import choose_algorithms, seed_generators
from framework.train.checkpoint import is_plain
from framework.train.noise import VALIDATION, key_noise
from framework.train.parameter_groups import PARTS, Scaling, optimizer_keys
from framework.train.weights import is_sharded
from framework.transform.none import NoTransform


@final
class Assembly:
    """The parts that deliver a run's data, each built after the parts that it needs.

    Args:
        config: The configuration as plain values. The data replaces each ``auto``.
        allowed: Prefixes of the user's packages, whose classes the configuration may name.
        say: Prints a note or a warning. Only rank 0 prints.
        profile: The folder for a trace of a few steps; None: no trace.
    """

    def __init__(
        self, config: Config, allowed: Sequence[str], say: Say = say, profile: Path | None = None
    ) -> None:
        config, self.starts_from = init_weights.with_digest(config)  # the file of weights, or None
        self.declared = auto.declared_inputs(config)  # what the model says about its inputs
        config, sizes = auto.with_declared_sizes(config, self.declared)
        self.allowed = allowed
        self.notes: list[str] = []  # on the parts, for the log and the summary
        parallel = self.parallel = open_ranks(config, allowed)
        self.device = parallel.device
        keep_freed_memory(of_any_size=self.device.type == "cpu")
        self.leads = parallel.rank == 0  # this rank alone prints and writes
        self.say = say if self.leads else lambda _: None
        of_rank = parallel.world_size > 1
        self.clock: Clock = make_clock(self.device, config["clock"], of_rank)
        self.val_clock: Clock = make_clock(self.device, config["clock"])
        self.trace: ProfiledClock | None = None  # the clock that also writes a trace
        if profile is not None:
            self.trace = ProfiledClock(self.clock, profile / f"rank{parallel.rank}{ENDING}")
            self.clock = self.trace
        if of_rank:
            parallel.time_exchanges(self.clock.mark)
        with ExitStack() as stack:
            from_data = self._open_sources(stack, config)
            self.from_data = {**sizes, **from_data}  # the value of each ``auto``, by dotted name
            source = self.train_source
            self.augment = make_augment(self.config, allowed, source.manifest)
            self.label_checks: dict[str, LabelCheck] = {}  # by split
            self.waits = Waits(source.slow_batches)  # of the training steps for their batches
            given, vals = self.config["data"]["train"], val_sets(self.config["data"])
            self.train = self._loader("train", given, source, self.clock, self.waits)
            self.val_loaders = {
                name: self._loader(split_of(name), vals[name], own, self.val_clock, Waits())
                for name, own in self.val_sources.items()
            }
            # the only loader of validation, or those of several sets by name, or None
            self.val = self.val_loaders.get("", self.val_loaders or None)
            self.tests: dict[str, Loader] = {}  # the loaders of ``data.test`` by split
            for name, given in val_sets(self.config["data"], "test").items():
                split = split_of(name, "test")
                own = self.sources[split]
                self.tests[split] = self._loader(split, given, own, self.val_clock, Waits())
            self.tuning: LiveTuning | None = None  # changes how training records are read
            if config["workers"]["num"] == auto.AUTO:
                self.tuning = LiveTuning(source, self.train, self.waits, cores_per_rank(), self.say)
            order = source.order
            if not self.train.num_steps:
                records = f"{order.num_used} records, fewer than a batch of {order.batch_size}"
                fix = "lower batch_size, or choose short or wrap"
                raise ConfigError(134, "last = drop", f"leaves nothing of {records}", fix)
            # how the learning rate follows the batch size
            optim, size = self.config["optim"], order.batch_size
            reference = optim.get("reference_batch_size") or size
            self.scaling = Scaling(optim.get("scaling") or "none", reference, size)
            # why steps cannot be captured as a CUDA graph, or None
            self.graph_refusal = graph_refusal(self.config, parallel, source)
            self.captures = self.config["cuda_graph"] and self.graph_refusal is None
            # all ranks learn the same, with the same code
            code = {"torch": str(torch.__version__), "code": code_digest()}
            check_agreement(parallel, {**self.learns, **code})
            stack.pop_all()

    def _open_sources(self, stack: ExitStack, config: Config) -> Config:
        """Open the data, and let ``stack`` close it. Return each ``auto``'s value by its name."""
        from_data: Config = {}
        opened = partial(open_source, allowed=self.allowed, parallel=self.parallel)
        given = config["data"]["train"]
        # Values for the transform come from a source, and every source needs a transform.
        if auto.is_wanted(config["transform"]):
            with closing(opened("train", given, config, transform=NoTransform())) as source:
                config, from_data = auto.resolve(config, source, ["transform"], self.declared)
        train = opened("train", given, config)
        stack.callback(train.close)
        config, numbers = auto.resolve(config, train, auto.PARTS, self.declared)
        from_data |= numbers
        if config["batch_size"] is None:  # ready batches have theirs
            from_data["batch_size"] = train.order.batch_size
            config = {**config, "batch_size": train.order.batch_size}
        self.config = config
        self.train_source = train
        self.sources: dict[str, Source] = {"train": train}  # by split
        self.val_sources: dict[str, Source] = {}  # by name: "" is the only one
        manifests: dict[str, dict[str, Manifest]] = {"val": {}, "test": {}}
        for key, of_split in manifests.items():
            # a fold cuts training data alone
            cut = config if key == "val" else {**config, **targets.UNFOLDED}
            for name, given in val_sets(config["data"], key).items():
                split = split_of(name, key)
                source = opened(split, given, cut)
                stack.callback(source.close)
                select = config["select"]
                agreed = with_agreed_classes(train.manifest, source, select, f"data.{split}")
                self.sources[split] = agreed
                of_split[name] = agreed.manifest
                if key == "val":
                    self.val_sources[name] = agreed
        sampler = train.order.sampler
        if sampler is not None and not is_plain(sampler.state(0, 0)):
            where = f"order = {config['order']['_target_']}, state_dict"
            what = "returns more than tensors and plain values"
            fix = "return numbers, texts, tensors, and lists and dicts of them"
            raise ConfigError(208, where, what, fix)
        # what identifies the data of validation and test, or None, and what decides what is learned
        self.validates = resume.evaluated_data(manifests["val"], config)
        self.tests_on = resume.evaluated_data(manifests["test"], config, "test")
        batch_size = train.order.batch_size
        self.learns = resume.learned(config, batch_size, train.manifest, self.validates)
        return from_data

    def _loader(self, split: str, given: Any, source: Source, clock: Clock, waits: Waits) -> Loader:
        # checks nothing yet
        check = LabelCheck(f"data.{split} = {targets.data_name(given)}", source.key)
        self.label_checks[split] = check
        finish = self.augmenter(split == "train")
        context = LoaderContext(source, self.device, finish, clock, waits, check)
        return self.build("loader", context=context)

    @cached_property
    def sample(self) -> Batch:
        return self.train_source.sample(NUM_SAMPLES)

    @property
    def effective(self) -> dict[str, float]:
        """The batch size over all ranks, and the ``lr`` and ``warmup_steps`` that it leads to."""
        schedule = self.config["schedule"]
        values = self.scaling.effective(self.config["optim"], schedule)
        if schedule.get("warmup_epochs") is not None:
            values["warmup_steps"] = round(schedule["warmup_epochs"] * self.train.num_steps)
        return values

    def build(self, name: str, **runtime: Any) -> Any:
        return build(name, self.config[name], self.allowed, **runtime)

    def augmenter(self, training: bool) -> Finish:
        """Return the function that augments a batch; without random numbers outside training."""
        fused = fuses(self.config, self.augment, self.device)
        return finish_with(self.augment, self.config["seed"], training, fused, self.say)

    def close(self) -> None:
        """Stop threads, processes and the process group, close the files, and write the trace."""
        for loader in (self.train, *self.val_loaders.values(), *self.tests.values()):
            loader.close()
        self.parallel.close()
        if self.trace is not None:
            self.trace.close()


def open_ranks(config: Config, allowed: Sequence[str]) -> Parallel:
    """Seed the generators, and return the ranks of ``parallel``, each with its device."""
    seed_generators(config["seed"])
    key_noise(config["seed"], VALIDATION)
    device = find_device(config["device"])
    choose_algorithms(device, config["deterministic"])
    parallel: Parallel = build("parallel", config["parallel"], allowed, device=device)
    use(parallel.device, pinned=False)
    stay_on_gpu_node(parallel.device)
    return parallel


def find_device(name: str) -> torch.device:
    """Return the device called ``name``. ConfigError C119 if this machine does not have it."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        if device == torch.device("cuda"):  # whose meaning differs between threads
            device = torch.device("cuda", 0)
            # Each rank uses its own GPU. A tensor on the first GPU would waste memory there.
            if torch.cuda.is_available():
                return device
        torch.empty(0, device=device).cpu()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        what = f"is not available on this machine ({words_of(error)})"
        raise ConfigError(119, f"device = {name}", what, "choose auto or cpu") from error
    return device


def open_source(
    split: str,
    given: Any,
    config: Config,
    allowed: Sequence[str],
    parallel: Parallel,
    transform: contracts.Transform | None = None,
) -> Source:
    """Open the data that ``given`` names, with ``transform`` or the configured one."""
    context = source_context(config, allowed, parallel, split == "train", transform)
    data = config["data"]
    chosen = {"path": given}
    if targets.makes_data(data):
        chosen = {"data": build(f"data.{split}", given, allowed)}
    return build("data.source", data["source"], allowed, **chosen, context=context)


def source_context(
    config: Config,
    allowed: Sequence[str],
    parallel: Parallel,
    training: bool,
    transform: contracts.Transform | None = None,
) -> SourceContext:
    accumulate = config["accumulate"] if training else 1
    virtual_ranks = config["parallel"].get("virtual_ranks")
    batch_size = config["batch_size"] or 0
    if config["rank_batch_size"] is not None:
        batch_size = config["rank_batch_size"] * (virtual_ranks or parallel.world_size) * accumulate
    if not training and config["val_batch_size"] is not None:
        batch_size = config["val_batch_size"]
    order = partial(
        Order,
        batch_size=batch_size,
        seed=config["seed"],
        shuffle=training and config["shuffle"],
        accumulate=accumulate,
        rank=parallel.rank,
        world_size=parallel.world_size,
        limit=config["limit"],
        last=config["last"] if training else "short",
        block=config["order"].get("block_records"),
        window=config["order"].get("window_blocks", 1),
        virtual_ranks=virtual_ranks,
    )
    order_choice = fold = None
    if "_target_" in config["order"]:
        make, name = partial(build, "order", config["order"], allowed), config["order"]["_target_"]
        if name.startswith(targets.OURS):
            order_choice = make()
        else:
            takes = [key for key in targets.parameters_of(name) if key not in config["order"]]
            order_choice = SamplerOrder(make, takes, name, parallel.gather, allowed)
    if config["folds"] is not None:
        fold = Fold(config["fold"], config["folds"], config["fold_by"])
    key, block = "transform", config["transform"]
    if not training and config["data"].get("val_transform") is not None:
        key, block = "data.val_transform", config["data"]["val_transform"]
    cores = cores_per_rank()
    if parallel.device.type == "cuda":  # one is left to launch the step's kernels
        cores = max(1, cores - 1)
    workers = config["workers"]
    return SourceContext(
        order=order,
        order_choice=order_choice,
        transform=transform or build(key, block, allowed),
        transform_key=key,
        training=training,
        select=config["select"],
        fold=fold,
        val_batch_size=config["val_batch_size"],
        seed=config["seed"],
        num_workers=None if workers["num"] == auto.AUTO else workers["num"],
        worker_kind=workers["kind"],
        device=parallel.device,
        collate=config["collate"],
        verify=config["verify"],
        worker_timeout_s=workers["timeout_s"],
        start_method=workers["start_method"],
        num_cores=cores,
        gather=parallel.gather,
    )


def make_augment(config: Config, allowed: Sequence[str], manifest: Manifest) -> Augment:
    """Build the augment for data with this manifest. ConfigError C199 if it moves boxes."""
    block = config["augment"]
    # Each part of a composition is built alone first, so that an error names the part.
    for where, part in list(targets.targets(block, "augment"))[1:]:
        build(where, part, allowed)
    augment: Augment = build("augment", block, allowed)
    if config["channels_last"] and isinstance(augment, contracts.AugmentTraits):
        augment = augment.with_layout(torch.channels_last)
    moved = ", ".join(followers(manifest))
    if moved and contracts.traits_of(augment).moves_pixels:
        what = f"moves pixels, but cannot move {moved} with them"
        fix = "choose a transform that does, such as transform=flip or random_resized_crop"
        raise ConfigError(199, f"augment = {block['_target_']}", what, fix)
    labels = manifest.label_maps
    if labels and isinstance(augment, contracts.KnowsLabels):
        return augment.with_labels(labels)
    return augment


def fuses(config: Config, augment: Augment, device: torch.device) -> bool:
    """Return whether to compile the augment. On the CPU, slow augments are already written in C."""
    return bool(config["compile"]) and device.type != "cpu" and contracts.traits_of(augment).exact


def fused(optim: Config) -> Config:
    """Return the optimizer's block with ``fused: true`` if it can be. Typed options count.

    Only a fused optimizer reads its learning rate anew at every replay.
    """
    can_fuse = "fused" in targets.parameters_of(optim["_target_"])
    if not can_fuse or optim.get("foreach") or optim.get("differentiable"):
        return optim
    return {"fused": True, **optim}


def fuses_by_default(optim: Config, model: nn.Module) -> bool:
    """Return whether torch's optimizer may update all weights of ``model`` in one kernel.

    It takes no sparse gradients, which embeddings may have, and not every sharded weight.
    """
    weights = list(model.parameters())
    on_gpu = all(weight.is_cuda and weight.is_floating_point() for weight in weights)
    if not on_gpu or any(map(is_sharded, weights)):
        return False
    is_sparse = any(getattr(module, "sparse", False) for module in model.modules())
    return not is_sparse and str(optim["_target_"]).startswith("torch.optim.")


def graph_refusal(config: Config, parallel: Parallel, source: Source) -> str | None:
    """Return why steps cannot be captured, or None. Several replicas and DALI may refuse."""
    device = parallel.device.type
    reads_rates = fused(optimizer_keys(config["optim"])).get("fused")
    scales = config["precision"].get("dtype") == "fp16"
    reasons = (
        device != "cuda" and f"{device} has no graphs",
        parallel.graph_refusal,
        source.graph_refusal,
        config["accumulate"] > 1 and "a step of several passes is not captured",
        scales and "fp16's scaling looks at every step",
        config["on_nan"] == "skip" and "on_nan=skip looks at every step",
        bool(config["optim"].get(PARTS)) and "several optimizers step one after the other",
        bool(config["recompute"]) and "recompute keeps the state of the generators",
        takes_optimizer(config["schedule"]) and "a scheduler of torch works on the host",
        not reads_rates and "only a fused optimizer reads its rate anew",
    )
    return next((reason for reason in reasons if isinstance(reason, str)), None)


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


def check_agreement(parallel: Parallel, facts: resume.Learned) -> None:
    """Compare the facts of all ranks with rank 0's: DistributedError P105 on every rank.

    All ranks call it together.
    """
    leader, *others = gathered(parallel, facts)
    for rank, other in enumerate(others, 1):
        differences = [
            f"{key} ({other.get(key)}, rank 0 has {leader.get(key)})"
            for key in {**leader, **other}
            if leader.get(key) != other.get(key)
        ]
        if differences:
            what = f"is about to do something else: {', '.join(differences)}"
            fix = "give every rank the same code, packages and copy of the data"
            raise DistributedError(105, f"rank {rank}", what, fix)
