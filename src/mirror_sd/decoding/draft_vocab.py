"""Which tokens the draft may propose: a smaller head costs less and misses a few.

The size is chosen by what the head costs here, measured, against the share of the target's own
tokens that a vocabulary of that size would have held, measured too.
"""

from __future__ import annotations

from collections.abc import Callable

from ..models.token_usage import SIZES
from .profile import Profile
from .survival import Survival, expected_tokens

STICKINESS = 1.03  # another size must be so much better
FULL = 0  # in profiles: all tokens
Seconds = Callable[[int | None], float]


def choose(
    profile: Profile, source: str, longest: int, vocab_size: int, default: int | None, time: Seconds
) -> int | None:
    """How many tokens the draft should score, besides those of the context; None for all.

    Args:
        profile: what is known of the pair here; the choice is noted in it.
        source: the drafter's name.
        longest: the most tokens it drafts.
        vocab_size: of the target.
        default: taken until enough is known; one of `SIZES`, or None.
        time: seconds of the head over so many tokens; asked once for each size.
    """
    if profile.draft_vocab is None:
        profile.draft_vocab = default or FULL
    if profile.costs.draft(source, longest) is not None and profile.usage.is_enough:
        sizes = [*(size for size in SIZES if size < vocab_size), FULL]
        for size in sizes:
            if size not in profile.head_seconds:
                profile.head_seconds[size] = time(size or None)
        rates = {size: _rate(profile, source, longest, size) for size in sizes}
        best = max(rates, key=lambda size: rates[size])
        if rates[best] > STICKINESS * rates[profile.draft_vocab]:
            profile.draft_vocab = best
            profile.costs.forget_draft(source)  # they were another head's
    return profile.draft_vocab or None


def _rate(profile: Profile, source: str, longest: int, size: int) -> float:
    """Tokens per second with a head of this size, at the best length."""
    used = profile.draft_vocab or FULL
    saved = profile.head_seconds[used] - profile.head_seconds[size]
    held = profile.usage.share(size or None) / max(1e-9, profile.usage.share(used or None))
    chances = profile.survival.get(source, Survival()).chances(longest)
    expected = expected_tokens([min(1.0, chance * held) for chance in chances])
    rates = []
    for length in range(1, longest + 1):
        drafting = (profile.costs.draft(source, length) or 0.0) - saved * length / longest
        verifying = profile.costs.verify(length + 1, 0) or 0.0
        rates.append(expected[length] / max(1e-9, max(0.0, drafting) + verifying))
    return max(rates)
