"""Memory is flat but for the caches' own growth, and comes back at the end of a session."""

from __future__ import annotations

import gc

import mlx.core as mx
import pytest

from mirror_sd.api import make_session
from mirror_sd.decoding.acceptance import GreedyAcceptance
from mirror_sd.decoding.drafter import DFlashDrafter
from mirror_sd.decoding.length import FixedLength
from mirror_sd.decoding.output import until
from mirror_sd.decoding.prompt import chat_tokens
from mirror_sd.decoding.session import Session
from mirror_sd.models.target import Target
from tests import tiny


def held(session: Session) -> int:
    """Active bytes that are not the caches'."""
    caches = sum(cache.nbytes for cache in session.target.cache.layers)
    context = sum(a.nbytes for cache in session.drafters["dflash"]._context for a in cache.arrays)
    return mx.get_active_memory() - caches - context


def walk(session: Session, prompt: list[int], count: int) -> list[int]:
    """What is held after each cycle."""
    session.prefill(prompt)
    held_after = []
    for _ in session.stream(count, until(())):
        held_after.append(held(session))
    return held_after


def check_flat(values: list[int], allowance: int) -> None:
    warm = values[10:]
    assert max(warm) - min(warm) <= allowance, (min(warm), max(warm))


def start(family_settings: dict, **changes) -> Session:
    target = tiny.target(**family_settings)
    target.lend()
    drafter = DFlashDrafter(tiny.draft(**changes), target)
    return Session(Target(target, drafter.taps), [drafter], GreedyAcceptance(), FixedLength(5))


def test_memory_is_flat_over_a_thousand_tokens():
    session = start({"max_position_embeddings": 4096})
    values = walk(session, [5] * 40, 1000)
    check_flat(values, 300_000)


def test_memory_comes_back_when_a_session_ends():
    session = start({})
    gc.collect()
    mx.clear_cache()
    before = mx.get_active_memory()
    for _ in range(3):
        walk(session, [5] * 200, 60)
        session.target.cache.clear()
        session.drafters["dflash"].trim_to(0)
        session.history.clear()
    del session
    gc.collect()
    assert mx.get_active_memory() <= before + 50_000


@pytest.mark.slow
def test_memory_is_flat_at_16k_tokens_of_context():
    session = start({"max_position_embeddings": 20000})
    values = walk(session, [(7 * i) % 250 for i in range(15_400)], 1000)
    assert session.target.length > 16_000
    check_flat(values, 3_000_000)


@pytest.mark.slow
def test_a_long_prompt_and_a_long_answer_of_the_demo_pair(demo_pair):
    model, tokenizer = demo_pair
    text = "The quick brown fox jumps over the lazy dog. " * 230
    long = chat_tokens(tokenizer, [{"role": "user", "content": text + "Summarise this."}])
    assert len(long) > 2048
    session = make_session(model, block_size=4)
    check_flat(walk(session, long[-2048:], 128), 40_000_000)
    question = [{"role": "user", "content": "Tell me a long story about a lighthouse."}]
    check_flat(walk(session, chat_tokens(tokenizer, question), 1024), 40_000_000)
