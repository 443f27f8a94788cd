"""The parts of a run, and the only place where they meet."""

import json
import os
import shutil
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from framework.augment.fused import Fused
from framework.config.agreement import check_agreement, code_digest
from framework.config.auto import PARTS, is_wanted, resolve, wrong_channels
from framework.config.build import build, last_line
from framework.config.graph_choice import fused, refusal
from framework.config.resume import Learned, check_form, check_same, learned, validation_data
from framework.config.targets import Config, targets
from framework.contracts.batch import Batch, described, move, taken, tensors, use
from framework.contracts.data import (
    Augment,
    KnowsLabels,
    Source,
    SourceContext,
    Transform,
)
from framework.contracts.loader import Clock, Loader, LoaderContext
from framework.contracts.parallel import Parallel, Precision
from framework.contracts.records import notes_of
from framework.contracts.training import Objective, RunContext, Sink
from framework.data.classes import with_agreed_classes
from framework.errors import CheckpointError, ConfigError, ResourceError, words_of
from framework.image.label_map import colored
from framework.measure.clock import make_clock
from framework.measure.host import cores_per_rank
from framework.measure.profile import ENDING, ProfiledClock
from framework.order import Order, device_key, keyed_draws
from framework.parallel.warm_up_ddp import settle
from framework.system.malloc import keep_freed_memory
from framework.system.rng import kept_generators, seed_generators
from framework.system.user_code import raise_if_user_error
from framework.train.checkpoint import CheckpointFolder
from framework.train.cuda_graph import CudaRecorder
from framework.train.ema import Average
from framework.train.lr_scaling import Scaling, scaling_of, without_scaling
from framework.train.metrics import TrainPlan, check_outcome
from framework.train.trainer import Trainer
from framework.transform.none import NoTransform

MISFITS = (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError)
NUM_SAMPLES = 8  # records tried on the model before the first step, and shown as images


class Assembly:
    """Parts of one run, made in the order they need each other. ``config``: plain values, resolved; ``allowed``: the user's packages;
    ``profile``: the folder for a trace of a few steps; None for none.
    """

    def __init__(self, config: Config, allowed: Sequence[str], profile: Path | None = None) -> None:
        self.config, self.allowed = config, allowed
        keep_freed_memory()
        seed_generators(config["seed"])
        self.parallel: Parallel = self.build("parallel", device=_device(config["device"]))
        self.device = self.parallel.device
        use(self.device, pinned=False)
        self.clock: Clock = make_clock(self.device, config["clock"])
        self.val_clock: Clock = make_clock(self.device, config["clock"])
        self.profiled = (
            None
            if profile is None
            else ProfiledClock(self.clock, profile / f"rank{self.parallel.rank}{ENDING}")
        )
        self.clock = self.profiled or self.clock
        self._say: Callable[[str], None] = print
        self.validates_anew = False  # a resumed run that is validated on other data than before
        self.from_data: Config = {}  # what ``auto`` stood for, by dotted name
        if is_wanted(config["transform"]):
            with closing(self._source("train", NoTransform())) as source:
                self._take_from(source, ["transform"])
        self.train_source = self._source("train", self.build("transform"))
        with ExitStack() as stack:
            stack.callback(self.train_source.close)
            self._take_from(self.train_source, PARTS)
            for where, block in list(targets(self.config["augment"], "augment"))[1:]:
                build(where, block, allowed)  # a part of a composition by itself: an error names it
            self.augment: Augment = self.build("augment")
            labels = self.train_source.manifest.label_maps
            if labels and isinstance(self.augment, KnowsLabels):
                self.augment = self.augment.with_labels(labels)
            stack.pop_all()
        self.val_source = (
            self._source("val", self.build("transform")) if config["data"]["val"] else None
        )
        if self.val_source is not None:
            self.val_source = with_agreed_classes(self.train_source, self.val_source)
        self.train = self._loader(self.train_source, self.clock, training=True)
        self.val = (
            None
            if self.val_source is None
            else self._loader(self.val_source, self.val_clock, training=False)
        )
        if not self.train.num_steps:
            what = f"leaves nothing of {self.train_source.order.num_used} records, fewer than a batch of {self.scaling.batch_size}"
            raise ConfigError(134, "last = drop", what, "lower batch_size, or choose short or wrap")
        check_agreement(
            self.parallel,
            {**self._learned(), "torch": str(torch.__version__), "code": code_digest()},
        )

    @property
    def notes(self) -> list[str]:
        """What the choices together mean, where that is not plain to see."""
        share, scaling = self.config["rank_batch_size"], self.scaling
        notes = [f"from the data: {_listed(self.from_data)}"] if self.from_data else []
        if self.validates_anew:
            notes.append(
                "validation data differs from the saved run's: its figures are dropped, and best begins anew"
            )
        for source in self.sources.values():
            notes += notes_of(source)
        if share is not None:
            notes.append(
                f"rank_batch_size={share} makes batch_size {scaling.batch_size}, over all ranks and accumulation"
            )
        if scaling.rule != "none":
            notes.append(
                f"optim.scaling={scaling.rule}: {', '.join(f'{key} {value:g}' for key, value in self.effective.items())}"
            )
        if self.config["cuda_graph"] and not self._captures:
            notes.append(f"cuda_graph=true: {self._not_captured}; steps run kernel by kernel")
        if self.config["compile"] and self.device.type != "cpu" and not self._fuses:
            notes.append(
                "compile=true: the augmentation is not said to be exact, and runs kernel by kernel"
            )
        return notes

    @property
    def _not_captured(self) -> str | None:
        return refusal(
            {**self.config, "optim": fused(without_scaling(self.config["optim"]))}, self.device
        )

    @property
    def _captures(self) -> bool:
        return self.config["cuda_graph"] and self._not_captured is None

    @property
    def scaling(self) -> Scaling:
        """Of the learning rate with the batch size."""
        return scaling_of(self.config["optim"], self.train_source.order.batch_size)

    @property
    def effective(self) -> dict[str, float]:
        """``batch_size`` over all ranks, and what it makes of ``lr`` and ``warmup_steps``, where the configuration has them."""
        return self.scaling.effective(self.config["optim"], self.config["schedule"])

    def _optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        optim = without_scaling(self.config["optim"])
        block = fused(optim) if self._captures else optim
        optimizer: torch.optim.Optimizer = build(
            "optim", block, self.allowed, params=model.parameters()
        )
        for group in optimizer.param_groups:
            group["lr"] *= self.scaling.factor
        return optimizer

    @property
    def _schedule(self) -> Config:
        schedule = self.config["schedule"]
        return (
            {**schedule, "warmup_steps": self.effective["warmup_steps"]}
            if "warmup_steps" in schedule
            else schedule
        )

    def build(self, name: str, **runtime: Any) -> Any:
        """The part that the block called ``name`` describes."""
        return build(name, self.config[name], self.allowed, **runtime)

    @property
    def sources(self) -> dict[str, Source]:
        found = {"train": self.train_source, "val": self.val_source}
        return {split: source for split, source in found.items() if source is not None}

    def _order(self, training: bool) -> Callable[[int], Order]:
        """How records are ordered and cut for this rank. ``rank_batch_size`` sets the global batch by the number of ranks."""
        config, world_size = self.config, self.parallel.world_size
        accumulate = config["accumulate"] if training else 1
        share, virtual_ranks = config["rank_batch_size"], config["parallel"].get("virtual_ranks")
        batch_size = (
            config["batch_size"]
            if share is None
            else share * (virtual_ranks or world_size) * accumulate
        )
        return partial(
            Order,
            batch_size=batch_size,
            seed=config["seed"],
            shuffle=training and config["shuffle"],
            accumulate=accumulate,
            rank=self.parallel.rank,
            world_size=world_size,
            limit=config["limit"],
            last=config["last"] if training else "short",
            block=config["order"]["block_records"],
            window=config["order"]["window_blocks"],
            virtual_ranks=virtual_ranks,
        )

    def _take_from(self, source: Source, parts: Sequence[str]) -> None:
        """Give the ``parts`` of the configuration the facts that ``source`` knows."""
        self.config, numbers = resolve(self.config, source, parts)
        self.from_data |= numbers

    def _source(self, split: str, transform: Transform) -> Source:
        training, workers = split == "train", self.config["workers"]
        order = self._order(training)
        context = SourceContext(
            order,
            transform,
            training,
            self.config["seed"],
            workers["num"],
            workers["kind"],
            self.device,
            self.config["verify"],
            workers["timeout_s"],
            workers["start_method"],
            cores_per_rank(),
        )
        block, path = self.config["data"]["source"], self.config["data"][split]
        return build("data.source", block, self.allowed, path=path, context=context)

    def _loader(self, source: Source, clock: Clock, training: bool) -> Loader:
        return self.build(
            "loader", context=LoaderContext(source, self.device, self._finish(training), clock)
        )

    def _finish(self, training: bool) -> Callable[[Batch, int], Batch]:
        """The augmentation of a split's batches, with the numbers it draws."""
        augment, seed = self.augment, self.config["seed"]
        num_draws = augment.num_draws if training else 0

        def plain(batch: Batch, key: Tensor) -> Batch:
            return augment(
                batch, keyed_draws(batch["index"], key, num_draws) if num_draws else None
            )

        finish = Fused(plain, self._tell) if training and self._fuses else plain
        key = lru_cache(maxsize=1)(partial(device_key, seed))  # of an epoch
        return lambda batch, epoch: finish(batch, key(epoch))

    @property
    def _fuses(self) -> bool:
        """Whether the augmentation is compiled. On the CPU there is nothing to fuse: what is slow there is C already."""
        return (
            self.config["compile"]
            and self.device.type != "cpu"
            and getattr(self.augment, "exact", False)
        )

    def _tell(self, text: str) -> None:
        if self.parallel.rank == 0:
            self._say(text)

    def trainer(
        self,
        run_dir: Path | None,
        state: dict[str, Any] | None,
        stop: Callable[[], bool],
        say: Callable[[str], None] = print,
    ) -> Trainer:
        """The Trainer over all parts, going on from ``state``. The model is tried on a few records first: ConfigError C118. CheckpointError
        K105 where ``state`` is of a run that learns something else.

        ``run_dir`` None: nothing is written; for measuring. ``say``: takes warnings.
        """
        self._say = say
        objective: Objective = self.build("objective")
        sample = self.train_source.sample(NUM_SAMPLES)
        model = self._model(objective, sample)
        precision: Precision = self.build("precision", device=self.device)
        # virtual ranks have no engine that arranges anything
        if self.parallel.world_size > 1 and self.train_source.order.virtual_ranks is None:
            settle(model, objective, precision, self._augmented(self._of_rank(sample)), self.device)
        decay = self.config["ema_decay"]
        trainer = Trainer(
            _plan(self.config),
            model=model,
            objective=objective,
            optimizer=self._optimizer(model),
            schedule=build("schedule", self._schedule, self.allowed),
            train=self.train,
            val=self.val,
            parallel=self.parallel,
            precision=precision,
            clock=self.clock,
            val_clock=self.val_clock,
            checkpoints=None if run_dir is None else self._checkpoints(run_dir, say),
            average=None if decay is None else Average(self.parallel.unwrap(model), decay),
            stop=stop,
            recorder=CudaRecorder(self.device) if self._captures else None,
            say=say,
        )
        if state is not None:
            self._restore(trainer, state)
        check_agreement(
            self.parallel, {"step": trainer.progress.step}
        )  # a run directory that not all ranks see
        if self.parallel.rank == 0 and run_dir is not None:
            shown = colored(sample, self.train_source.manifest.label_maps)
            run = RunContext(
                run_dir, trainer.total_steps, self.config["epochs"], trainer.progress.step, shown
            )
            trainer.sinks = self._sinks(run)
        return trainer

    def _model(self, objective: Objective, sample: Batch) -> nn.Module:
        """Tried on ``sample``, then wrapped for its ranks."""
        model: nn.Module = self.build("model").to(self.parallel.home)
        if self.config["channels_last"]:
            model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]  # torch's stub lacks it
        self._try_training(sample)
        batch = move(self._augmented(sample), self.parallel.home)
        try:
            check_fit(model, objective, batch, self.config, self.allowed)
        except ConfigError as error:
            why = last_line(error.__cause__ or error)
            raise wrong_channels(self.config, self.train_source, why) or error from error.__cause__
        model = self.parallel.wrap(model)
        if self.config["compile"]:
            _compile(model, self.device)
        return model

    def _of_rank(self, sample: Batch) -> Batch:
        """``sample`` over and over, as long as what this rank has of a micro-batch."""
        cuts = (
            self.train_source.order.virtual_ranks
            or self.parallel.world_size * self.config["accumulate"]
        )
        share = max(1, self.train_source.order.batch_size // cuts)
        return taken(sample, torch.arange(share) % len(sample["index"]))

    def _augmented(self, sample: Batch) -> Batch:
        """As in evaluation. ConfigError C118 where the augmentation does not fit."""
        with self._fitting(sample):
            return self._finish(training=False)(move(sample, self.device), 0)

    def augmenter(self) -> Callable[[Batch, int], Batch]:
        """Return what augments a training batch, on the device, of an epoch."""
        return self._finish(training=True)

    def _try_training(self, sample: Batch) -> None:
        """The augmentation as in training, once and on the host, so that what does not fit is said before the first step. ConfigError C118."""
        if num_draws := self.augment.num_draws:
            on_host = move(sample, torch.device("cpu"))
            with self._fitting(sample), kept_generators(self.device):
                self.augment(
                    on_host,
                    keyed_draws(on_host["index"], device_key(self.config["seed"], 0), num_draws),
                )

    @contextmanager
    def _fitting(self, sample: Batch) -> Generator[None]:
        try:
            yield
        except Exception as error:
            raise_if_user_error(
                error,
                self.allowed,
                described(sample),
                "mend it, or set the augment's keys to what the data is",
            )
            if not isinstance(error, MISFITS):
                raise
            raise _misfit_of("augment", self.config["augment"], sample, error) from error

    def _checkpoints(self, run_dir: Path, say: Callable[[str], None]) -> CheckpointFolder:
        chosen = self.config["checkpoint"]
        facts = {
            "learned": self._learned(),
            "validation": self._validation(),
            "world_size": self.parallel.world_size,
            "versions": {"torch": str(torch.__version__)},
        }
        return CheckpointFolder(run_dir, facts, chosen["keep"], chosen["every_s"], say)

    def _learned(self) -> Learned:
        source = self.train_source
        return learned(self.config, source.order.batch_size, source.manifest)

    def _validation(self) -> Learned | None:
        manifest = None if self.val_source is None else self.val_source.manifest
        return validation_data(manifest, self.config["data"]["val"], self.config["limit"])

    def _restore(self, trainer: Trainer, state: dict[str, Any]) -> None:
        run, saved = self.config["resume"]["run"], state["learned"]
        present = self._learned()
        self.validates_anew = "validation" in state and state["validation"] != self._validation()
        if self.validates_anew:  # figures of other data are compared with nothing
            state = {**state, "best": {}, "val": {}}
        try:
            check_same(
                run,
                saved,
                present,
                self.config["resume"]["allow"],
                lambda: self._loads(trainer, state),
            )
            self._load(trainer, state)
        except (RuntimeError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            what = f"its state does not fit this configuration ({last_line(error)})"
            raise CheckpointError(
                103,
                f"resume = {run}",
                what,
                "resume with the model and optimizer it was saved with",
            ) from error

    def _loads(self, trainer: Trainer, state: dict[str, Any]) -> bool:
        """Whether the state loads; ``trainer`` is of no use afterwards."""
        if state["learned"].get("optim._target_") != self._learned().get("optim._target_"):
            return False  # torch loads another optimizer's state, and fails in the first step
        try:
            self._load(trainer, state)
        except (
            CheckpointError,
            RuntimeError,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            IndexError,
        ):
            return False
        return True

    def _load(self, trainer: Trainer, state: dict[str, Any]) -> None:
        if state["progress"]["epoch_step"] and state["order"] != trainer.train.identity:
            what = f"was saved inside an epoch of {state['order']}, this one has {trainer.train.identity}"
            raise CheckpointError(
                104,
                f"resume = {self.config['resume']['run']}",
                what,
                "change them when the epoch has ended",
            )
        check_form(state)
        trainer.load_state_dict(state)

    def _sinks(self, run: RunContext) -> list[Sink]:
        """All sinks, or none: where one cannot be made, those before it are closed."""
        with ExitStack() as stack:
            sinks: list[Sink] = []
            for name, block in (self.config.get("sink") or {}).items():
                sinks.append(build(f"sink.{name}", block, self.allowed, run=run))
                stack.callback(sinks[-1].close)
            stack.pop_all()
        return sinks

    def close(self) -> None:
        """Give back threads, processes, handles and the process group, and write the trace of what was traced."""
        for loader in (self.train, self.val):
            if loader is not None:
                loader.close()
        self.parallel.close()
        if self.profiled is not None:
            self.profiled.close()


def _listed(numbers: Config) -> str:
    """Numbers by dotted name, as they would be typed."""
    return ", ".join(
        f"{name}={json.dumps(value, separators=(',', ':'))}" for name, value in numbers.items()
    )


def _plan(config: Config) -> TrainPlan:
    return TrainPlan(
        config["epochs"],
        config["max_steps"],
        config["report_every"],
        config["validate_every"],
        config["checkpoint"]["every_steps"],
        config["clip_norm"],
        skip_bad=config["on_nan"] == "skip",
        max_missed=config["max_skips"],
    )


def _device(name: str) -> torch.device:
    """``auto``: CUDA where there is one. ConfigError C119 for a device this machine does not have."""
    if name == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = numbered(torch.device(name))
        torch.empty(0, device=device).cpu()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ConfigError(
            119, f"device = {name}", f"not here ({last_line(error)})", "choose auto or cpu"
        ) from error
    return device


def numbered(device: torch.device) -> torch.device:
    """The first GPU, where none is named: every thread, and what is compared with a tensor's own device, must mean the same one."""
    return torch.device("cuda", 0) if device == torch.device("cuda") else device


def _compile(model: nn.Module, device: torch.device) -> None:
    """From its first call on the model is compiled: anew for each size of batch, of which there are two or three, each by static shapes.

    ResourceError R105 where there is nothing to compile with; torch would say so in the first step, in a hundred lines.
    """
    compilers = (
        [os.environ.get("CXX", ""), "g++", "clang++"]
        if device.type == "cpu"
        else [os.environ.get("CC", ""), "gcc", "clang"]
    )
    if not any(map(shutil.which, filter(None, compilers))):
        names = " or ".join(compilers[1:])
        raise ResourceError(
            105,
            "compile = true",
            f"no compiler here ({names})",
            f"install {compilers[1]}, or set compile=false",
        )
    model.compile(dynamic=False)


@torch.no_grad()
def check_fit(
    model: nn.Module,
    objective: Objective,
    batch: Batch,
    config: Config,
    packages: Sequence[str] = (),
) -> None:
    """Run the model on a few records, as in evaluation, so that a shape that does not fit is said before the first step.

    Raises:
        ConfigError: C118 if the model does not fit the data, C220 for an outcome of another form.
        UserCodeError: U100 for an exception in the user's own code.

    """
    model.eval()
    try:
        outcome = objective(model, batch)
    except Exception as error:
        raise_if_user_error(
            error,
            packages,
            described(batch),
            "mend it, or set the model's keys to what the data is",
        )
        if not isinstance(error, MISFITS):
            raise
        raise _misfit_of("model", config["model"], batch, error) from error
    check_outcome(outcome)
    model.train()


def _misfit_of(name: str, block: Config, batch: Batch, error: Exception) -> ConfigError:
    why = (
        f"there is no {words_of(error)}"
        if isinstance(error, KeyError)
        else f"{type(error).__name__}: {last_line(error)}"
    )
    what = f"does not fit the data's {described(batch)} ({why})"
    fix = "set the model's keys (in_channels, num_classes, ...) or the objective's input and target to what the data is"
    if "Byte" in why and any(tensor.dtype == torch.uint8 for tensor in tensors(batch).values()):
        fix = "pixels are still bytes: augment=normalize, or such a part, makes floats of them"
    return ConfigError(
        118,
        f"{name} = {block['_target_']}",
        what,
        fix if name == "model" else "set its keys to what the data is",
    )
