"""Where an answer ends, and which text belongs to it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.utils import load_tokenizer

from mirror_sd.api import stream_generate
from mirror_sd.decoding.output import Output
from mirror_sd.models.loading import load_pair
from tests import tiny


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    base = tmp_path_factory.mktemp("output")
    target, draft = tiny.write_target(base / "target"), tiny.write_draft(base / "draft")
    return load_pair(str(target), str(draft))


def tokenizer(tmp=[]):  # noqa: B006  made once
    if not tmp:
        import tempfile
        from pathlib import Path

        folder = tiny.write_target(Path(tempfile.mkdtemp()))
        tmp.append(load_tokenizer(folder))
    return tmp[0]


def feed(text: str, sizes: list[int], stop: list[str], limit: int = 10**6):
    """Take a text in, in pieces as a session would."""
    tokens = tokenizer().encode(text, add_special_tokens=False)
    output = Output(tokenizer(), {tiny.EOS}, stop)
    said, taken, start, number = "", [], 0, 0
    while start < len(tokens):
        size = min(sizes[number % len(sizes)], limit - len(taken), len(tokens) - start)
        kept, reason = output.take(tokens[start : start + size], limit - len(taken))
        assert len(output.segments) == len(kept)
        taken += kept
        said += "".join(output.segments)
        start += size
        number += 1
        if reason:
            return said, taken, reason
    return said, taken, None


letters = st.text(alphabet="abé", max_size=30)


@given(
    text=letters,
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    stop=st.lists(st.text(alphabet="abé", min_size=1, max_size=4), max_size=3),
)
def test_text_ends_before_the_first_stop_string(text, sizes, stop):
    said, _, reason = feed(text + "<end>", sizes, stop)
    found = [text.find(s) for s in stop if s in text]
    assert said == (text[: min(found)] if found else text)
    assert reason == "stop"


def test_a_stop_string_may_lie_across_blocks_and_tokens_after_it_do_not_count():
    said, taken, reason = feed("one two three", [4], ["two"])
    assert (said, reason) == ("one ", "stop")
    assert len(taken) == len("one two")


def test_text_that_only_looks_like_a_stop_string_is_shown_after_all():
    assert feed("one twx", [3], ["two"])[0] == "one tw"[:6] + "x"
    assert feed("one tw<end>", [3], ["two"])[:1] == ("one tw",)


def test_text_held_back_at_the_limit_is_shown():
    assert feed("one tw", [6], ["two"], limit=6) == (
        "one tw",
        [*map(int, taken_of("one tw"))],
        "length",
    )


def taken_of(text: str) -> list[int]:
    return tokenizer().encode(text, add_special_tokens=False)


def test_an_answer_that_stops_leaves_only_its_own_tokens_in_the_session(pair):
    model, words = pair
    from mirror_sd.api import make_session

    free = "".join(r.text for r in stream_generate(model, words, "abc", 40))
    stop = free[5:8]
    session = make_session(model)
    responses = list(stream_generate(model, words, "abc", 40, session=session, stop=[stop]))
    assert "".join(r.text for r in responses) == free[: free.find(stop)]
    assert responses[-1].finish_reason == "stop"
    said = [r.token for r in responses]
    # The last token's row may be in already, if plain decoding ran ahead of it.
    assert len(said) - 1 <= session.target.length - 3 <= len(said)
    assert session.history[3:] == said[: session.target.length - 3]
