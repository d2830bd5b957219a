"""The demo pair says what plain mlx-lm says, token for token."""

from __future__ import annotations

import warnings

import pytest

from mirror_sd.api import make_session, stream_generate
from mirror_sd.bench import prompts
from mirror_sd.decoding import plain
from mirror_sd.decoding.divergence import TIE_MARGIN, find
from mirror_sd.decoding.prompt import chat_tokens
from mirror_sd.errors import Notice

# Block size and draft window.
SETTINGS = {"block 2": (2, None), "block 4": (4, None), "block 8": (8, None), "window": (8, 32)}


def compare(pair, chosen, count, settings):
    """Numbers of answers that are identical and that differ in a tie; anything else fails."""
    model, tokenizer = pair
    ties = []
    for prompt in chosen:
        tokens = prompt.encode(tokenizer)
        answers = {}
        for name in settings:
            block_size, window = SETTINGS[name]
            session = make_session(model, block_size=block_size, draft_window=window)
            answers[name] = [
                r.token for r in stream_generate(model, tokenizer, tokens, count, session=session)
            ]
        wanted = plain.run(model.target, tokenizer, tokens, count).tokens
        for name, answer in answers.items():
            divergence = find(model.target, tokens, answer, wanted)
            if divergence:
                assert divergence.margin < TIE_MARGIN, f"{name}: {prompt.label}: {divergence}"
                ties.append(f"{name}: {prompt.label[:40]}: {divergence}")
    if ties:
        warnings.warn("numerical ties: " + "; ".join(ties), Notice, stacklevel=2)


def test_five_prompts_of_40_tokens(demo_pair):
    compare(demo_pair, prompts.builtin(1)[:5], 40, ["block 8"])


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_20_prompts_of_128_tokens_at_all_settings(demo_pair, part):
    compare(demo_pair, prompts.builtin(4)[5 * part : 5 * part + 5], 128, SETTINGS)


def test_the_draft_is_right_often_enough_to_be_the_trained_one(demo_pair):
    model, tokenizer = demo_pair
    question = "Write a Python function that adds two numbers."
    tokens = chat_tokens(tokenizer, [{"role": "user", "content": question}])
    *_, last = stream_generate(model, tokenizer, tokens, 48, block_size=8)
    assert last.acceptance_length > 1.8  # measured 2.3; an untrained or misread draft has 1.0


def test_a_second_turn_reuses_the_first_ones_prompt_and_answer(demo_pair):
    model, tokenizer = demo_pair
    session = make_session(model)
    messages = [{"role": "user", "content": "Name three colours."}]
    first = chat_tokens(tokenizer, messages)
    text, count = "", 0
    for response in stream_generate(model, tokenizer, first, 24, session=session):
        text += response.text
        count += 1
    messages += [
        {"role": "assistant", "content": text},
        {"role": "user", "content": "And three more?"},
    ]
    second = chat_tokens(tokenizer, messages)
    kept = [r.token for r in stream_generate(model, tokenizer, second, 16, session=session)]
    assert session.statistics.reused_tokens >= len(first) + count - 2
    assert kept == plain.run(model.target, tokenizer, second, 16).tokens
