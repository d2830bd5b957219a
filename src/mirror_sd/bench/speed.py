"""Ways of decoding timed side by side, at several depths of context: what `mirror-sd bench` runs.

Ways take turns within a run, since a machine's speed drifts, and a speed-up is the median of each
run's own ratio to plain decoding. What a device did comes from its own clock's intervals.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from statistics import median
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..api import make_session
from ..decoding import divergence, plain
from ..decoding.output import until
from ..decoding.sampling import SamplingSettings
from ..decoding.session import Session
from ..decoding.trace import as_row
from ..errors import PromptError
from ..models.loading import Pair
from . import timeline
from .prompts import of_depth

SEED = 0  # of sampling: with it, the text does not depend on the draft


class Way(StrEnum):
    """How an answer is decoded."""

    plain = "plain"
    mlx = "draft in MLX"
    turns = "draft on its device, in turn"
    mirrored = "draft on its device, mirrored"


@dataclass(frozen=True)
class Settings:
    """What is measured.

    Attributes:
        ways: that are compared.
        depths: tokens of context.
        runs: of each way at each depth, after one that is not counted.
        max_tokens: of an answer.
        block_size: anchor and drafted tokens; None adapts it.
        temperature: of sampling, with a seed; 0 for greedy decoding.
    """

    ways: Sequence[Way]
    depths: Sequence[int] = (64, 2048, 4096)
    runs: int = 3
    max_tokens: int = 64
    block_size: int | None = None
    temperature: float = 0.0


@dataclass(frozen=True)
class Sample:
    """An answer.

    Attributes:
        tokens: what it said.
        seconds: from the end of the first cycle on.
        counted: tokens in that time.
        rows: its cycles, as in a trace; none of mlx-lm's own loop.
    """

    tokens: list[int]
    seconds: float
    counted: int
    rows: list[dict[str, Any]] = field(default_factory=list)

    @property
    def tokens_per_second(self) -> float:
        """Decoding speed without the first cycle."""
        return self.counted / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class Result:
    """A way at a depth.

    Attributes:
        way: of decoding.
        depth: tokens of the prompt.
        samples: of all runs.
        speedup: median ratio to plain decoding of the same run; None without that.
        lossless: "yes", what differs, or "" where plain decoding was left out.
        failed: whether the text differs by more than rounding.
    """

    way: Way
    depth: int
    samples: Sequence[Sample]
    speedup: float | None = None
    lossless: str = ""
    failed: bool = False

    @property
    def tokens_per_second(self) -> float:
        """Median of the runs."""
        return median(sample.tokens_per_second for sample in self.samples)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Cycles of all runs."""
        return [row for sample in self.samples for row in sample.rows]

    @property
    def acceptance_length(self) -> float:
        """Mean tokens per target pass."""
        return sum(len(row["tokens"]) for row in self.rows) / len(self.rows) if self.rows else 1.0

    def milliseconds(self, what: str) -> float | None:
        """Median "draft_ms" or "verify_ms" of drafted cycles; None where nothing was drafted."""
        found = [row[what] for row in self.rows if row["planned"]]
        return median(found) if found else None

    @property
    def exposed(self) -> float | None:
        """Milliseconds of drafting per drafted cycle that the target waited for."""
        drafted = sum(bool(row["planned"]) for row in self.rows)
        return sum(t.exposed for t in self._timelines()) / drafted if drafted else None

    @property
    def overlap(self) -> float | None:
        """Share of the device's work beside the target's; None without a device."""
        found = self._timelines()
        lanes = [(t.spans(timeline.TARGET), t.spans(timeline.DEVICE)) for t in found]
        busy = sum(timeline.length(device) for _, device in lanes)
        both = sum(timeline.length(timeline.intersection(*pair)) for pair in lanes)
        return both / busy if busy else None

    @property
    def hits(self) -> tuple[int, int] | None:
        """Proposals that were ready, of calls beside a verify; None where there was none."""
        found = self._timelines()
        launched = sum(t.launched for t in found)
        return (sum(t.ready for t in found), launched) if launched else None

    def _timelines(self) -> list[timeline.Timeline]:
        return [timeline.read(sample.rows) for sample in self.samples if sample.rows]


class Speed:
    """Measures a pair.

    Args:
        pair: with a placed draft for the ways that need a device.
        tokenizer: of the target.
        settings: what to measure.

    Raises:
        PromptError: the target does not allow a depth, or a way has no draft or device.
    """

    def __init__(self, pair: Pair, tokenizer: TokenizerWrapper, settings: Settings):
        self._pair, self._tokenizer, self._settings = pair, tokenizer, settings
        limit = pair.target.context_limit
        deepest = max(settings.depths) + settings.max_tokens
        if limit is not None and deepest > limit:
            raise PromptError(
                f"{max(settings.depths)} tokens of context and {settings.max_tokens} of an answer "
                f"are more than {pair.target.name} allows, {limit}"
            )
        device = {Way.turns, Way.mirrored} & set(settings.ways)
        if device and (pair.draft is None or pair.draft.placed is None):
            raise PromptError(
                "decoding with a device needs a draft on one: programs, or the device mlx"
            )

    def run(self, progress: Callable[[int, int, str], None]) -> Iterable[Result]:
        """Measure; results come depth by depth.

        Args:
            progress: is told answers done, answers in all, and what is going on.
        """
        s = self._settings
        each = len(s.ways) * (s.runs + 1)

        def tell(before: int, done: int, text: str) -> None:
            progress(before + done, len(s.depths) * each, text)

        for number, depth in enumerate(s.depths):
            prompt = of_depth(self._tokenizer, depth)
            yield from self._depth(prompt, partial(tell, number * each))

    def _depth(self, prompt: list[int], progress: Callable[[int, str], None]) -> list[Result]:
        s, done = self._settings, 0
        sessions = {way: self._session(way) for way in s.ways if not self._by_mlx_lm(way)}
        samples: dict[Way, list[Sample]] = {way: [] for way in s.ways}
        for run in range(s.runs + 1):
            for way in s.ways:
                progress(done, f"{len(prompt)} tokens of context, {way.value}")
                sample = self._sample(sessions.get(way), prompt)
                if run:  # the first one warms up: it reads the prompt, and learns
                    samples[way].append(sample)
                done += 1
        progress(done, f"{len(prompt)} tokens of context")
        return [self._judge(way, prompt, samples) for way in s.ways]

    def _by_mlx_lm(self, way: Way) -> bool:
        """mlx-lm cannot draw with the noise of a seed and a position."""
        return way is Way.plain and not self._settings.temperature

    def _session(self, way: Way) -> Session:
        s, pair = self._settings, self._pair
        if pair.draft is not None and way in (Way.plain, Way.mlx):
            pair = replace(pair, draft=replace(pair.draft, placed=None))
        sampling = SamplingSettings(temperature=s.temperature, seed=SEED if s.temperature else None)
        size = 1 if way is Way.plain else s.block_size
        return make_session(pair, block_size=size, mirror=way is Way.mirrored, sampling=sampling)

    def _sample(self, session: Session | None, prompt: list[int]) -> Sample:
        s = self._settings
        if session is None:
            found = plain.run(self._pair.target, self._tokenizer, prompt, s.max_tokens)
            return Sample(found.tokens, found.seconds, len(found.tokens) - 1)
        session.prefill(prompt)
        tokens: list[int] = []
        rows: list[dict[str, Any]] = []
        start = time.perf_counter()
        for cycle in session.stream(s.max_tokens, until(self._pair.eos_token_ids)):
            tokens += cycle.tokens
            rows.append(as_row(cycle, start))
        first = session.statistics.first if session.statistics.passes > 1 else (0, 0.0)
        spent = session.statistics.seconds - first[1]
        return Sample(tokens, spent, len(tokens) - first[0], rows)

    def _judge(self, way: Way, prompt: list[int], samples: dict[Way, list[Sample]]) -> Result:
        own, base = samples[way], samples.get(Way.plain)
        if base is None:
            return Result(way, len(prompt), own)
        ratios = [
            mine.tokens_per_second / other.tokens_per_second
            for mine, other in zip(own, base, strict=True)
            if other.tokens_per_second
        ]
        lossless, failed = "", False
        if way is not Way.plain:
            lossless, failed = self._compare(prompt, own, base[0].tokens)
        return Result(way, len(prompt), own, median(ratios) if ratios else None, lossless, failed)

    def _compare(
        self, prompt: list[int], samples: Sequence[Sample], wanted: list[int]
    ) -> tuple[str, bool]:
        """Whether all runs said what plain decoding did; sampled texts must be equal."""
        said = "yes"
        for sample in samples:
            if sample.tokens == wanted:
                continue
            if self._settings.temperature:
                return "NO: another text than plain decoding with the same seed", True
            found = divergence.find(self._pair.target, prompt, sample.tokens, wanted)
            if found is not None and not found.is_tie:
                return str(found), True
            said = f"but for a numerical tie at token {found.position}" if found else said
        return said, False
