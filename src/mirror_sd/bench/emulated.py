"""A compiled draft in the emulator, in the place of the MLX draft."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from ..ane import plan as plans
from ..ane import reader
from ..ane.emulator import Emulator, Range
from ..ane.hardware import IDEAL, Hardware
from ..ane.head import FUNCTION, merge
from ..ane.host import HostedDraft
from ..ane.plan import Plan
from ..errors import PairingError
from ..models.draft import DFlashDraft
from .program_draft import Tensors, rope_tables, shape_of


class Programs:
    """A compiled draft's programs, loaded into emulators.

    Args:
        folder: of a compiled draft.
        context: width of the ring; None: the first that it was compiled for.
        hardware: how it computes.
        ranges: keep statistics of every tensor.
    """

    def __init__(
        self,
        folder: Path,
        context: int | None = None,
        hardware: Hardware = IDEAL,
        ranges: bool = False,
    ):
        self.plan = plans.read(folder)
        self.bucket = self.plan.bucket(context)
        self.kept: dict[str, np.ndarray] = {}
        self.keep: Collection[str] = ()
        self.emulators = [
            Emulator(
                reader.read(self.plan.package(folder, index))[self.bucket.function],
                hardware,
                ranges,
            )
            for index in range(len(self.plan.parts))
        ]
        heads = range(len(self.plan.head.parts)) if self.plan.head is not None else ()
        self.heads = [
            Emulator(reader.read(self.plan.head_package(folder, index))[FUNCTION], hardware, ranges)
            for index in heads
        ]

    def __call__(self, part: int, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run a part; values named in `keep` are left in `kept`."""
        here = [name for name in self.keep if name in self.emulators[part].function.types]
        found = self.emulators[part](arrays, here)
        self.kept |= {name: found[name] for name in here}
        return found

    def top(self, hidden: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The likeliest tokens by the compiled head: ids and logits [b, top].

        Args:
            hidden: [b, H] after the final norm, b at most the head's block.
        """
        plan = self.plan.head
        assert plan is not None
        columns = np.zeros(plan.inputs()["hidden"], np.float16)
        columns[0, :, 0, : len(hidden)] = hidden.T
        return merge(plan, [head({"hidden": columns}) for head in self.heads], len(hidden))

    @property
    def ranges(self) -> dict[str, Range]:
        """Statistics of all parts' tensors."""
        found: dict[str, Range] = {}
        for emulator in (*self.emulators, *self.heads):
            found |= emulator.ranges or {}
        return found

    def check(self, draft: DFlashDraft) -> None:
        """Refuse another draft's programs.

        Raises:
            PairingError: they were compiled from other weights.
        """
        if self.plan.fingerprint != Tensors(draft).fingerprint():
            raise PairingError(
                f"these programs were compiled from another draft ({self.plan.draft}); compile "
                "this one with mirror-sd compile"
            )


def hosted(programs: Programs, draft: DFlashDraft) -> HostedDraft:
    """A fresh context for compiled programs, with the draft's RoPE."""
    plan: Plan = programs.plan
    return HostedDraft(
        plan.shape, programs.bucket, plan.parts, plan.calibration, rope_tables(draft), programs
    )


class _Context:
    """The ring, as a drafter sees it."""

    arrays: tuple[mx.array, ...] = ()

    def __init__(self, draft: HostedDraft):
        self.draft = draft
        self.pending: list[np.ndarray] = []

    @property
    def length(self) -> int:
        """Columns committed."""
        return self.draft.ring.length + sum(map(len, self.pending))

    def trim_to(self, length: int) -> None:
        """Forget columns."""
        while self.pending and self.length > length:
            gone = min(self.length - length, len(self.pending[-1]))
            self.pending[-1] = self.pending[-1][: len(self.pending[-1]) - gone]
            if not len(self.pending[-1]):
                self.pending.pop()
        self.draft.ring.trim_to(min(length, self.draft.ring.length))


class EmulatedDraft:
    """Drafts by emulated programs; the rest is the MLX draft's."""

    def __init__(self, programs: Programs, draft: DFlashDraft):
        assert programs.plan.shape == shape_of(draft)
        self.config, self.select = draft.config, draft.select
        self._programs, self._draft = programs, draft

    def make_context(self, window: int | None = None, sinks: int = 0) -> Sequence[Any]:
        """The ring's width bounds the context; `window` and `sinks` are not looked at."""
        return [_Context(hosted(self._programs, self._draft))]

    def extend(self, features: mx.array, context: Any) -> None:
        """Keep features for the next call."""
        context[0].pending.append(np.array(features[0].astype(mx.float32)))

    def __call__(self, embedded: mx.array, context: Any) -> mx.array:
        """Hidden states [1, b, H]."""
        (one,) = context
        width = self._programs.plan.shape.taps * self._programs.plan.shape.hidden
        features = np.concatenate([np.zeros((0, width), np.float32), *one.pending])
        one.pending = []
        block = np.array(self._draft.enter(embedded)[0].astype(mx.float32))
        hidden = one.draft(one.draft.absorb(features), block)
        return mx.array(hidden)[None].astype(self._draft.fc_dtype)
