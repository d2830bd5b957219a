"""A compiled draft in the emulator, in the place of the MLX draft."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import mlx.core as mx
import numpy as np

from ..ane import plan as plans
from ..ane import reader
from ..ane.emulator import Emulator, Range
from ..ane.hardware import IDEAL, Hardware
from ..ane.head import FUNCTION, merge
from ..ane.host import HostedDraft
from ..ane.plan import Plan
from ..decoding.device_draft import DeviceDraft
from ..devices.device import Inline
from ..models.context_columns import ContextColumns
from ..models.draft import DFlashDraft
from ..programs import rope_tables, shape_of


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


def hosted(programs: Programs, draft: DFlashDraft) -> HostedDraft:
    """A fresh context for compiled programs, with the draft's RoPE."""
    plan: Plan = programs.plan
    return HostedDraft(
        plan.shape,
        programs.bucket,
        plan.parts,
        plan.calibration,
        rope_tables(draft),
        Inline(programs),
    )


def context_rows(
    programs: Programs, draft: DFlashDraft, features: np.ndarray, position: int
) -> np.ndarray:
    """What the programs take of features [n, taps * H] whose first stands at `position`: the
    features, or keys and values that MLX computes.
    """
    if programs.bucket.new:
        return features
    rows = ContextColumns(draft).of_features(mx.array(features)[None], position)
    return np.array(rows[0].astype(mx.float32))


class EmulatedDraft(DeviceDraft):
    """Drafts by emulated programs; the rest is the MLX draft's."""

    def __init__(self, programs: Programs, draft: DFlashDraft):
        assert programs.plan.shape == shape_of(draft)
        bucket = programs.bucket
        super().__init__(
            draft, lambda: hosted(programs, draft), bucket.context, streamed=not bucket.new
        )
