"""Record what a draft would have got right at every token of real answers, for tests of the policy.

    python benchmarks/record.py FILE [--model demo] [--draft DRAFT] [--per-kind 4] [--tokens 64]

The target answers built-in prompts greedily; at every token of an answer the draft proposes a whole
block, in one pass over all of them. FILE gets a JSON object for each prompt: its kind, how many
tokens of the block behind each token were right, and the draft's confidence in each. With it, any
policy can be replayed on real text without a model (tests/decoding/test_recorded.py).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import mirror_sd

# isort: split
import mlx.core as mx
import numpy as np

from mirror_sd.bench import prompts
from mirror_sd.decoding import plain
from mirror_sd.training.features import Computed
from mirror_sd.training.forward import Blocks, hidden_states


def record(pair, features: Computed, prompt: list[int], answer: list[int]) -> dict:
    draft, target = pair.draft.model, pair.target
    block = draft.config.block_size
    ids = np.array([*prompt, *answer])
    anchors = np.arange(len(prompt) - 1, len(ids) - 1)
    tokens = np.full((1, len(anchors), block), draft.config.mask_token_id)
    tokens[0, :, 0] = ids[anchors]
    places = mx.array(anchors[None])
    blocks = Blocks(target.embed(mx.array(tokens)), places, places)
    hidden = hidden_states(draft, features.of(ids[None]).features, blocks)[0, :, 1:]
    logits = target.logits(hidden * draft.config.output_multiplier, draft.config.logit_softcap)
    chances = mx.softmax(logits.astype(mx.float32), axis=-1)
    said, confidences = mx.argmax(chances, axis=-1).tolist(), chances.max(axis=-1).tolist()
    rows = {"accepted": [], "confidences": []}
    for index, anchor in enumerate(anchors):
        truth = ids[anchor + 1 : anchor + block].tolist()
        right = 0
        while right < len(truth) and said[index][right] == truth[right]:
            right += 1
        rows["accepted"].append(right)
        rows["confidences"].append([round(c, 2) for c in confidences[index]])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--draft")
    parser.add_argument("--per-kind", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=64)
    settings = parser.parse_args()
    pair, tokenizer = mirror_sd.load(settings.model, settings.draft)
    features = Computed(pair.target, pair.draft.model.config.taps)
    chosen = prompts.builtin(settings.per_kind)
    with settings.file.open("w", encoding="utf-8") as out:
        for number, request in enumerate(chosen, 1):
            prompt = request.encode(tokenizer)
            answer = plain.run(pair.target, tokenizer, prompt, settings.tokens).tokens
            row = {"kind": request.kind, **record(pair, features, prompt, answer)}
            out.write(json.dumps(row, separators=(",", ":")) + "\n")
            print(f"{number}/{len(chosen)}", end="\r", file=sys.stderr)


if __name__ == "__main__":
    main()
