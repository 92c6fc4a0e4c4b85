"""Tells output that can't be right from output that is merely odd, without knowing what would be right.

Pure, and lenient on purpose: a model with random weights, sampled at temperature 1, must pass; a broken one
must not.
"""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Sequence

from sidecar.engines.protocol import Completion

#: Text shorter than this (characters) says nothing about repetition.
SHORTEST = 8
#: Tokens fewer than this say nothing about repetition.
FEWEST_TOKENS = 8
#: A unit that fills the text at least this often is a loop.
LOOPS = 4
#: Share of characters that stand for no text (U+FFFD, control characters) from which the text is noise. A
#: byte-level vocabulary with random weights yields some, never nearly all.
NOISE = 0.9
#: Share of the commonest token from which the output is that token. Under random weights it is 1/number of
#: tokens.
ONE_TOKEN = 0.8


def what_is_wrong(completion: Completion) -> str:
    """Say what is degenerate about an answer that was sampled at temperature 1; empty when nothing is."""
    return (
        numbers_wrong(completion.logprobs or ())
        or _tokens_wrong(completion.token_ids or ())
        or text_wrong(completion.text, completion.tokens)
    )


def text_wrong(text: str, tokens: int) -> str:
    """Say what is degenerate about a text of so many tokens; empty when nothing is."""
    if not text:
        return f"no text came, though {tokens} tokens were generated" if tokens else "no text and no token came"
    visible = "".join(text.split())
    if not visible:
        return "the text is only white space" if tokens >= FEWEST_TOKENS else ""
    blanks = sum(1 for each in visible if each == "\ufffd" or unicodedata.category(each) in ("Cc", "Cn", "Co"))
    if len(visible) >= SHORTEST and blanks >= NOISE * len(visible):
        return f"{blanks} of {len(visible)} characters are unreadable (replacement or control characters)"
    if len(visible) >= SHORTEST and len(set(visible)) == 1:
        return f"the text is the character {visible[0]!r} {len(visible)} times"
    unit = _loop(visible)
    return f"the text repeats {unit[:20]!r} over and over" if unit else ""


def same_everywhere(texts: Sequence[str]) -> str:
    """Say so when different prompts with different seeds got one and the same answer; empty otherwise."""
    told = [text for text in texts if len(text) >= SHORTEST]
    if len(told) >= 2 and len(set(told)) == 1:
        return f"{len(told)} different prompts got the same answer, {told[0][:40]!r}"
    return ""


def numbers_wrong(logprobs: Sequence[float]) -> str:
    """Say what can't be right about the log-probabilities of an answer; empty when nothing is."""
    if any(math.isnan(each) for each in logprobs):
        return "a log-probability is not a number"
    if wrong := above_certainty(logprobs):
        return wrong
    if len(logprobs) >= FEWEST_TOKENS and len(set(logprobs)) == 1:
        return f"all {len(logprobs)} log-probabilities are {logprobs[0]:g}"
    return ""


def above_certainty(logprobs: Sequence[float]) -> str:
    """Say so when a log-probability is above 0, which none can be; empty otherwise."""
    return "a log-probability is above 0" if any(each > 1e-3 for each in logprobs) else ""


def _tokens_wrong(ids: Sequence[int]) -> str:
    if len(ids) < FEWEST_TOKENS:
        return ""
    token, count = Counter(ids).most_common(1)[0]
    if count >= ONE_TOKEN * len(ids):
        return f"{count} of {len(ids)} tokens are the token {token}"
    return ""


def _loop(text: str) -> str:
    """Find the unit whose repetition makes up the last three quarters of a text; empty when there is none.

    The first quarter is left out, because a broken model often begins well.
    """
    tail = text[len(text) // 4 :]
    if len(tail) < SHORTEST:
        return ""
    for length in range(1, len(tail) // LOOPS + 1):
        if all(tail[index] == tail[index - length] for index in range(length, len(tail))):
            return tail[:length]
    return ""
