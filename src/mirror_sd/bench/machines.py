"""Devices as the simulator sees them, and what was published about some."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """What things cost, in milliseconds.

    Attributes:
        name: of the machine and the pair.
        source: where the costs come from.
        verify: a target pass by its rows, with little context; linear between them.
        draft: a call of the draft's device.
        score: the target's head over drafted rows, and reading the tokens back; it is the target's
            device that does this, before the verify.
        launch: what the host does for a call beside the verify, before the verify goes on.
        deep: share by which a pass grows for each thousand tokens of context.
        contention: share by which a verify is slower while the draft's device works.
        slowed: share by which the draft's device is slower while the target works.
    """

    name: str
    source: str
    verify: Mapping[int, float]
    draft: float
    score: float = 0.0
    launch: float = 0.0
    deep: float = 0.0
    contention: float = 0.0
    slowed: float = 0.0

    def pass_ms(self, rows: int, depth: int = 0) -> float:
        """A target pass."""
        known = sorted(self.verify)
        below = max((n for n in known if n <= rows), default=known[0])
        above = min((n for n in known if n >= rows), default=known[-1])
        cost = self.verify[below]
        if above > below:
            share = (rows - below) / (above - below)
            cost += share * (self.verify[above] - cost)
        return cost * (1 + self.deep * depth / 1000)


PUBLISHED = (
    Machine(
        name="M4 Pro, Qwen3-4B bf16, z-lab draft",
        source="github.com/shipstuff/mlx-ane-sd: plain 29.27 tok/s; a cycle of blocks of 16 takes "
        "102 ms, of which the head takes 19.5 and the draft on the Neural Engine 9.8 (fp16), which "
        "leaves 72.7 for the verify. Contention 3% of the GPU (reported for an M5 Pro), 15% of the "
        "Neural Engine",
        verify={1: 34.2, 16: 72.7},
        draft=9.8,
        score=19.5,
        contention=0.03,
        slowed=0.15,
    ),
    Machine(
        name="M4 Pro, Qwen3-4B bf16, draft and head on the Neural Engine",
        source="as above, with 6-bit palettes: draft 5.4, head 3.1",
        verify={1: 34.2, 16: 72.7},
        draft=5.4 + 3.1,
        contention=0.03,
        slowed=0.15,
    ),
    Machine(
        name="verify 187 ms, draft 39 ms",
        source="the first implementation of this idea, blocks of 16; no time of plain decoding",
        verify={16: 187.0},
        draft=39.0,
    ),
)
