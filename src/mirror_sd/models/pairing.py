"""Whether a draft fits a target, checked before anything runs."""

from __future__ import annotations

from ..errors import PairingError
from . import registry
from .draft_config import DraftConfig
from .target import TargetModel


def check(target: TargetModel, draft: DraftConfig, draft_name: str) -> None:
    """Refuse a draft that was made for another target.

    Raises:
        PairingError: what differs, with both numbers, and the right draft if the registry knows it.
    """
    reason = _misfit(target, draft)
    if reason is None:
        return
    row = registry.find(target.name)
    known = row is not None and row.draft != draft_name
    advice = f"; the draft for {target.name} is {row.draft}" if row and known else ""
    raise PairingError(f"draft {draft_name} does not fit target {target.name}: {reason}{advice}")


def _misfit(target: TargetModel, draft: DraftConfig) -> str | None:
    for what, of_draft, of_target in (
        ("hidden size", draft.hidden_size, target.hidden_size),
        ("vocabulary", draft.vocab_size, target.vocab_size),
        ("number of target layers", draft.num_target_layers, target.depth),
    ):
        if of_draft is not None and of_draft != of_target:
            return f"{what} {of_draft} against {of_target}"
    if max(draft.taps) >= target.depth:
        return f"it taps layer {max(draft.taps)} of a target with layers 0 to {target.depth - 1}"
    if draft.mask_token_id >= target.vocab_size:
        return f"mask id {draft.mask_token_id} in a vocabulary of {target.vocab_size}"
    return None
