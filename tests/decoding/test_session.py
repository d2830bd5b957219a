"""Speculative tokens are plain tokens, whatever the drafter says."""

from __future__ import annotations

import functools

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.generate import generate_step

from mirror_sd.api import make_session
from mirror_sd.decoding.acceptance import GreedyAcceptance
from mirror_sd.decoding.drafter import DFlashDrafter
from mirror_sd.decoding.length import FixedLength
from mirror_sd.decoding.output import until
from mirror_sd.decoding.session import Session
from mirror_sd.errors import PromptError
from mirror_sd.models.loading import Draft, Pair
from mirror_sd.models.target import Target
from tests import tiny

BLOCK = 6
TARGET = tiny.target()
DRAFT = tiny.draft()
PROMPT = [5, 17, 200, 31, 8, 99, 42]


@functools.cache
def plain(prompt: tuple[int, ...], count: int) -> list[int]:
    """What mlx-lm says, never stopping."""
    steps = generate_step(mx.array(prompt), TARGET.model, max_tokens=count)
    return [int(token) for token, _ in steps]


def session(drafter, length: int | None = None) -> Session:
    target = Target(TARGET, drafter.taps)
    length = drafter.longest if length is None else length
    return Session(target, [drafter], GreedyAcceptance(), FixedLength(length))


def scripted(script, prompt=PROMPT, taps=()) -> tiny.ScriptedDrafter:
    answer = plain(tuple(prompt), 80)
    return tiny.ScriptedDrafter(answer, len(prompt), script, BLOCK - 1, taps)


def decode(running: Session, prompt, count: int, stop=()) -> list:
    running.prefill(prompt)
    return list(running.stream(count, until(stop)))


def tokens(cycles) -> list[int]:
    return [token for cycle in cycles for token in cycle.tokens]


@given(
    script=st.lists(st.integers(0, BLOCK - 1), min_size=1, max_size=12),
    count=st.integers(1, 60),
    length=st.integers(0, BLOCK - 1),
)
def test_every_acceptance_pattern_gives_the_plain_tokens(script, count, length):
    drafter = scripted(script, taps=(0, 3))
    running = session(drafter, length)
    cycles = decode(running, PROMPT, count)
    assert tokens(cycles) == plain(tuple(PROMPT), 80)[:count]
    assert cycles[-1].finish_reason == "length"
    assert max(drafter.proposals, default=0) <= length
    # The caches hold exactly the committed tokens, and the drafter got a feature row for each.
    committed = PROMPT + tokens(cycles)[:-1]
    assert running.history == committed
    assert running.target.length == drafter.length == len(committed)
    assert [c.offset for c in running.target.cache.layers] == [len(committed)] * TARGET.depth


@pytest.mark.parametrize("right", range(BLOCK))
def test_each_acceptance_length_is_counted(right):
    cycles = decode(session(scripted([right])), PROMPT, 3 * (right + 1))
    assert [len(cycle.tokens) for cycle in cycles] == [right + 1] * 3
    assert [cycle.accepted for cycle in cycles[:-1]] == [right] * 2


def test_features_are_those_of_the_committed_tokens():
    drafter = scripted([2, 0, 4], taps=(0, 2))
    running = session(drafter)
    cycles = decode(running, PROMPT, 30)
    committed = PROMPT + tokens(cycles)[:-1]
    target = Target(TARGET, (0, 2))
    wanted = mx.concatenate([f for _, f in target.prefill(committed)], axis=1)
    got = mx.concatenate(drafter.features, axis=1)
    assert got.shape == wanted.shape
    assert mx.abs(got - wanted).max().item() < 1e-4


@pytest.mark.parametrize("position", range(2 * BLOCK))
def test_an_end_token_inside_a_block_ends_the_answer_there(position):
    answer = plain(tuple(PROMPT), 80)
    end = answer[position]
    first = answer.index(end)
    running = session(scripted([BLOCK - 1]))
    cycles = decode(running, PROMPT, 60, stop={end})
    assert tokens(cycles) == answer[: first + 1]
    assert cycles[-1].finish_reason == "stop"
    assert running.history == PROMPT + answer[:first]


@pytest.mark.parametrize("count", range(1, 2 * BLOCK + 2))
def test_exactly_max_tokens_come_out_and_no_row_is_verified_in_vain(count):
    drafter = scripted([BLOCK - 1])
    cycles = decode(session(drafter), PROMPT, count)
    assert len(tokens(cycles)) == count
    assert sum(len(cycle.proposed) + 1 for cycle in cycles) == count


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("length", range(1, BLOCK))
def test_a_real_draft_gives_the_plain_tokens(length, window):
    TARGET.lend()
    drafter = DFlashDrafter(DRAFT, TARGET, window)
    cycles = decode(session(drafter, length), PROMPT, 40)
    assert tokens(cycles) == plain(tuple(PROMPT), 80)[:40]


def test_a_draft_with_the_targets_choices_is_accepted():
    """The path from proposal to acceptance is not merely correcting a hopeless draft."""
    cycles = decode(session(scripted([3, 5])), PROMPT, 40)
    assert sum(cycle.accepted for cycle in cycles) > 25


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 31, 32, 33, 40])
def test_prompts_around_the_prefill_chunk(length, monkeypatch):
    monkeypatch.setattr("mirror_sd.models.target.PREFILL_CHUNK", 16)
    prompt = [(37 * i + 11) % 250 for i in range(length)]
    seen = []
    running = session(scripted([1, 3], prompt))
    running.prefill(prompt, lambda done, total: seen.append((done, total)))
    assert tokens(running.stream(20, until(()))) == plain(tuple(prompt), 80)[:20]
    assert seen == [(min(e, length - 1) + 1, length) for e in range(16, length + 15, 16)]


def test_a_second_answer_reuses_the_first_ones_caches():
    drafter = scripted([2, 4])
    running = session(drafter)
    said = tokens(decode(running, PROMPT, 20))
    longer = [*PROMPT, *said[:-1], 9, 9, 7]
    cycles = decode(running, longer, 15)
    assert running.statistics.reused_tokens == len(PROMPT) + len(said) - 1
    assert tokens(cycles) == plain(tuple(longer), 80)[:15]


def test_a_prompt_that_departs_from_the_conversation_is_reused_up_to_there():
    TARGET.lend()
    running = session(DFlashDrafter(DRAFT, TARGET))
    decode(running, PROMPT, 20)
    other = [*PROMPT[:4], 77, 78, 79]
    cycles = decode(running, other, 15)
    assert running.statistics.reused_tokens == 4
    assert tokens(cycles) == plain(tuple(other), 80)[:15]


def test_the_same_prompt_again_costs_one_row():
    running = session(scripted([1]))
    first = tokens(decode(running, PROMPT, 12))
    again = tokens(decode(running, PROMPT, 12))
    assert running.statistics.reused_tokens == len(PROMPT) - 1
    assert first == again


def test_closing_the_stream_between_cycles_leaves_the_session_usable():
    running = session(scripted([2]))
    running.prefill(PROMPT)
    stream = running.stream(60, until(()))
    said = [*next(stream).tokens, *next(stream).tokens]
    stream.close()
    assert running.history == [*PROMPT, *said[:-1]]
    rest = tokens(decode(running, [*PROMPT, *said], 10))
    assert said + rest == plain(tuple(PROMPT), 80)[: len(said) + 10]


class Breaking(tiny.ScriptedDrafter):
    """Interrupts when it is given its nth commit."""

    def __init__(self, after: int):
        super().__init__(plain(tuple(PROMPT), 80), len(PROMPT), [1], 3)
        self._left = after

    def extend(self, tokens, features, said=False):
        self._left -= 1
        if self._left == 0:
            raise KeyboardInterrupt
        super().extend(tokens, features, said)


@pytest.mark.parametrize("after", [1, 2, 5])
def test_an_interruption_anywhere_leaves_the_session_usable(after):
    running = session(Breaking(after))
    said: list[int] = []

    def answer() -> None:
        running.prefill(PROMPT)
        for cycle in running.stream(30, until(())):
            said.extend(cycle.tokens)

    with pytest.raises(KeyboardInterrupt):
        answer()
    assert running.target.length == len(running.history)
    rest = tokens(decode(running, [*PROMPT, *said], 20))
    assert said + rest == plain(tuple(PROMPT), 80)[: len(said) + 20]


def test_an_interrupted_verify_leaves_the_session_usable(monkeypatch):
    running = session(scripted([2]))
    running.prefill(PROMPT)
    said = next(running.stream(30, until(()))).tokens
    with monkeypatch.context() as patch:
        patch.setattr(running, "acceptance", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            next(running.stream(30, until(())))
    assert running.target.length == len(PROMPT) + len(said) - 1
    rest = tokens(decode(running, [*PROMPT, *said], 10))
    assert said + rest == plain(tuple(PROMPT), 80)[: len(said) + 10]


def test_two_sessions_on_one_model_do_not_disturb_each_other():
    one, two = session(scripted([2])), session(scripted([4, 0], [9, 8, 7]))
    one.prefill(PROMPT)
    two.prefill([9, 8, 7])
    first, second = one.stream(20, until(())), two.stream(20, until(()))
    got: tuple[list[int], list[int]] = ([], [])
    for _ in range(20):
        for stream, into in zip((first, second), got, strict=True):
            cycle = next(stream, None)
            into += cycle.tokens if cycle else []
    assert got[0] == plain(tuple(PROMPT), 80)[:20]
    assert got[1] == plain((9, 8, 7), 80)[:20]


def test_prompts_that_cannot_be_answered_are_refused():
    running = Session(Target(TARGET), [], GreedyAcceptance(), FixedLength(0))
    with pytest.raises(PromptError, match="empty"):
        running.prefill([])
    with pytest.raises(PromptError, match=r"512 tokens; tiny allows 512"):
        running.prefill([1] * 512)


def test_a_block_size_that_the_draft_does_not_have_is_refused():
    pair = Pair(TARGET, Draft(DRAFT, "tiny draft"), frozenset())
    with pytest.raises(PromptError, match="block size 7 is out of range: this draft takes 1 to 6"):
        make_session(pair, block_size=7)
