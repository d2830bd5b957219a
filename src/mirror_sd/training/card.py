"""The model card of a trained draft: what was done, by numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from .data import Text
from .trainer import Trainer

_TEMPLATE = """\
# DFlash draft for {target}

Trained by mirror-sd on the target's own answers (DFlash, arXiv 2602.06036). Decoding with it
gives the target's own text; it only makes that faster.

```
mirror-sd generate "Hello" --model {target} --draft THIS_FOLDER
```

- started from: {start}
- shape: {layers} layers, blocks of {block_size}, taps on layers {taps}
- data: {texts} answers, {tokens} answer tokens ({kinds})
- steps: {steps}, each of {batch} texts with {anchors} blocks, {accumulate} batches per update
- learning rate {rate:g}, {objective}
- blocks with a visible prefix: {prefix:.0%}, with lagging features: {lag:.0%}
- {result}
"""


def card(trainer: Trainer, facts: Mapping[str, Any], texts: Sequence[Text]) -> str:
    """Markdown.

    Args:
        trainer: at the end of its run.
        facts: `target`, `sampling` and `start` of the run.
        texts: that were learnt from.
    """
    settings, config = trainer.settings, trainer.draft.config
    sampling, start = facts["sampling"], facts["start"]
    best, objective = trainer.best, settings.objective
    kinds = Counter(text.kind for text in texts)
    result = "no draft was evaluated on held-out prompts"
    if best.value is not None:
        result = (
            f"acceptance length on held-out prompts, greedy, by decoding: {best.value:.2f}, after "
            f"step {best.step}, which is the draft here"
        )
    weighting = "D-PACE weights" if objective.dpace else "fixed decay of weights"
    return _TEMPLATE.format(
        target=facts["target"],
        start=start["init_from"] or "a new draft with the target's last layers",
        layers=len(trainer.draft.layers),
        block_size=config.block_size,
        taps=", ".join(str(tap) for tap in config.taps),
        texts=len(texts),
        tokens=sum(len(text) - text.prompt for text in texts),
        kinds=", ".join(f"{kind} {count}" for kind, count in kinds.most_common()),
        steps=trainer.step,
        batch=sampling["batch"],
        anchors=sampling["anchors"],
        accumulate=settings.accumulate,
        rate=settings.learning_rate,
        objective=weighting + (f", {objective.distill:.0%} distilled" * bool(objective.distill)),
        prefix=sampling["visible_prefix"],
        lag=sampling["feature_lag"],
        result=result,
    )
