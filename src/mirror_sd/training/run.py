"""A training run from its settings: draft, data, features and trainer put together."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..models.target import TargetModel
from . import data
from .batches import Sampling, Schedule
from .card import card
from .data import Text
from .export import export
from .features import Computed, Features, Progress, Stored
from .start import Start, make
from .trainer import Evaluate, Report, Settings, Trainer

STATES, FEATURES, LOG, CARD = "states", "features.npy", "log.jsonl", "README.md"
TRAINED = "mirror_sd"  # section of config.json that says what a draft was trained for


class Run:
    """Trains a draft on the texts of a folder.

    Args:
        target: frozen; lends embedding and head.
        tokenizer: of the target.
        texts: folder with the shards.
        out: for the draft, and the run's states, log and features besides.
        start: the draft to start from.
        sampling: how blocks are drawn; its block size is the draft's.
        settings: how to train.
        store_features: keep the target's features on disk instead of computing them every epoch.
        evaluate: gives a draft's held-out acceptance length.
        progress: told (texts done, texts in all) while features are stored.

    Raises:
        MirrorError: data or draft do not fit the target, or `out` holds another run.
    """

    def __init__(
        self,
        target: TargetModel,
        tokenizer: TokenizerWrapper,
        texts: Path,
        out: Path,
        start: Start,
        sampling: Sampling,
        settings: Settings,
        store_features: bool = False,
        evaluate: Evaluate | None = None,
        progress: Progress | None = None,
    ):
        target.lend()
        self._target, self._out = target, out
        self._texts = data.read(texts, "train", target.vocab_size)
        draft, self._config = make(start, target, tokenizer, sampling.seed)
        sampling = sampling.for_block_size(draft.config.block_size)
        self._config[TRAINED] = {
            "visible_prefix": sampling.visible_prefix,
            "feature_lag": sampling.feature_lag,
            "tap_dropout": sampling.tap_dropout,
        }
        taps = draft.config.taps
        schedule = Schedule(self._texts, sampling, len(taps))
        wanted = settings.objective.distill_top if settings.objective.distill else 0
        computed = Computed(target, taps, wanted)
        features: Features = computed
        out.mkdir(parents=True, exist_ok=True)
        if store_features:
            features = Stored(out / FEATURES, self._texts, computed, progress)
        self._facts = {
            "target": target.name,
            "texts": _fingerprint(self._texts),
            "sampling": asdict(sampling),
            "start": asdict(start),
        }
        states = out / STATES
        self.trainer = Trainer(
            draft, target, schedule, features, settings, states, self._facts, evaluate
        )
        self.steps_per_epoch = schedule.steps_per_epoch

    def train(self) -> Iterator[Report]:
        """Train to the end, writing the log; a report per step."""
        log = self._out / LOG
        known = read_log(log)[: self.trainer.step] if self.trainer.leads else []
        with log.open("w" if self.trainer.leads else "a", encoding="utf-8") as file:
            file.writelines(json.dumps(asdict(report)) + "\n" for report in known)
            for report in self.trainer.run():
                if self.trainer.leads:
                    file.write(json.dumps(asdict(report)) + "\n")
                    file.flush()
                yield report

    def export(self, bits: int | None = None) -> None:
        """Write the best draft into the output folder: by held-out acceptance where it was
        measured, else the last; and a model card.

        Args:
            bits: quantise it to so many, None for bfloat16.
        """
        if self.trainer.leads:
            self.trainer.use_best()
            vocab = self._target.vocab_size
            export(self._out, self.trainer.draft, self._config, self._texts, vocab, bits)
            (self._out / CARD).write_text(
                card(self.trainer, self._facts, self._texts), encoding="utf-8"
            )


def read_log(file: Path) -> list[Report]:
    """The reports of a log, as far as it is whole; none if there is no log."""
    reports: list[Report] = []
    if not file.exists():
        return reports
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            reports.append(Report(**json.loads(line)))
        except (ValueError, TypeError):
            break
    return reports


def _fingerprint(texts: Sequence[Text]) -> str:
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text.ids.tobytes())
    return digest.hexdigest()
