"""Texts from sequences: CTC to learn, the character error rate to look at.

Source: Graves et al., "Connectionist Temporal Classification", 2006.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import final

import numpy as np
import torch
from torch import Tensor, nn

from framework.contracts.batch import Batch
from framework.contracts.prediction import PredictedTexts, Predictions
from framework.contracts.training import Outcome
from framework.errors import ConfigError
from framework.objective.scores import Ranked, input_names, predicted

BLANK = 0  # the symbol for no character; number i of the alphabet is symbol i + 1


@final
class Recognize(Ranked):
    """CTC's loss per character. Better: lower ``cer``, then lower loss.

    The model returns logits [B, steps, len(alphabet) + 1], whose first symbol is the blank, and the
    number of steps of each record, int64 [B]. A record with too few steps for its text has an
    infinite loss. ``cer``, in validation only, is the sum of the edit distances over the sum of the
    characters, over all records and ranks. ``alphabet`` has the characters of the texts.
    """

    ranking = ("-cer", "-loss")

    def __init__(self, input: str | Sequence[str], target: str, alphabet: str) -> None:  # noqa: A002
        self.inputs = input_names(input)
        self.target = target
        self.alphabet = alphabet
        self._symbols = {char: number + 1 for number, char in enumerate(alphabet)}
        if len(self._symbols) < len(alphabet) or not alphabet:
            what = "must be different characters, at least one"
            raise ConfigError(275, f"objective.alphabet = {alphabet!r}", what, "correct it")

    def __call__(self, model: nn.Module, batch: Batch) -> Outcome:
        logits, steps = predicted(model, batch, self.inputs)
        texts: list[str] = batch[self.target]
        if logits.shape[2] != len(self.alphabet) + 1:
            what = f"the model gives {logits.shape[2]} symbols"
            raise ValueError(f"{what}, the alphabet has {len(self.alphabet)}, and there is a blank")
        for text in texts:
            for char in text:
                if char not in self._symbols:
                    where = f"objective.alphabet = {self.alphabet!r}"
                    raise ConfigError(276, where, f"lacks {char!r} of the text {text!r}", "add it")
        symbols = [self._symbols[char] for text in texts for char in text]
        lengths = [len(text) for text in texts]
        loss = nn.functional.ctc_loss(
            logits.float().log_softmax(2).transpose(0, 1),
            torch.tensor(symbols, dtype=torch.int64, device=logits.device),
            steps,
            torch.tensor(lengths, device=logits.device),
            blank=BLANK,
        )
        if model.training:  # comparing texts would take longer than a small model's step
            return Outcome(loss, {})
        errors = sum(map(edit_distance, self.read(logits, steps), texts))
        counts = {"errors": errors, "characters": sum(lengths)}
        totals = {name: torch.tensor(count, device=loss.device) for name, count in counts.items()}
        return Outcome(loss, {}, totals=totals)

    def predict(self, model: nn.Module, batch: Batch) -> Predictions:
        logits, steps = predicted(model, batch, self.inputs)
        return PredictedTexts(self.read(logits, steps))

    def read(self, logits: Tensor, steps: Tensor) -> list[str]:
        """Return the text of each record: the best symbol of each step, without its repeats."""
        texts: list[str] = []
        for symbols, count in zip(logits.argmax(2).tolist(), steps.tolist(), strict=True):
            changes = [symbol for symbol, _ in groupby(symbols[:count])]
            chars = [self.alphabet[symbol - 1] for symbol in changes if symbol != BLANK]
            texts.append("".join(chars))
        return texts

    def metrics(self, totals: Mapping[str, Tensor]) -> Mapping[str, float]:
        return {"cer": (totals["errors"] / totals["characters"].clamp(min=1)).item()}


def edit_distance(text: str, other: str) -> int:
    """Return how many characters to insert, delete or replace to make one text the other."""
    codes = np.array([ord(char) for char in other], dtype=np.int64)
    places = np.arange(len(other) + 1)
    costs = places  # between the text so far and every beginning of the other one
    for char in text:
        new = costs + 1
        new[1:] = np.minimum(new[1:], costs[:-1] + (codes != ord(char)))
        costs = np.minimum.accumulate(new - places) + places  # insertions, from left to right
    return int(costs[-1])
