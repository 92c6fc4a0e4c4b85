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
#: The same of what is said with small variations, in text that was sampled from prose: share of the commonest character, of
#: the commonest word, and of two words or tokens in turn; and from how many on such shares tell anything.
ONE_CHARACTER, TWO_IN_TURN = 0.9, 0.95
FEWEST_CHARACTERS, FEWEST_WORDS, FEWEST_IN_TURN = 16, 12, 16
#: A long unit (characters) is a loop when it fills the end of a text twice; a short one when it fills the second half so often.
LONG_UNIT, HALF_LOOPS = 16, 8
#: Categories of characters that stand for no text: control, format, unassigned, private, surrogates.
_BLANK = ("Cc", "Cf", "Cn", "Co", "Cs")


def what_is_wrong(completion: Completion) -> str:
    """Say what is degenerate about an answer, whatever was asked; empty when nothing is.

    Who is stuck in a loop does not end it: repeats in an answer that ended by itself, such as `0.3333333333` or a nil UUID, are
    what was meant.
    """
    ended = completion.finish_reason == "stop"
    return (
        numbers_wrong(completion.logprobs or ())
        or ("" if ended else _tokens_wrong(completion.token_ids or ()))
        or text_wrong(completion.text, completion.tokens, ended=ended)
    )


def what_is_wrong_sampled(completion: Completion) -> str:
    """Say what is degenerate about a continuation of prose that was sampled at temperature 1; empty when nothing is.

    Stricter: nothing in prose asks for tables, numbers or refrains. Whoever uses it asks again with another seed.
    """
    wrong = what_is_wrong(completion)
    return wrong if wrong or completion.finish_reason == "stop" else _varied_repeats(completion)


def text_wrong(text: str, tokens: int, *, ended: bool = False) -> str:
    """Say what is degenerate about a text of so many tokens; empty when nothing is. `ended`: by itself, so it is no loop."""
    if not text:
        return f"no text came, though {tokens} tokens were generated" if tokens else "no text and no token came"
    visible = "".join(text.split())
    if not visible:
        return "the text is only white space" if tokens >= FEWEST_TOKENS else ""
    blanks = sum(1 for each in visible if each == "\ufffd" or unicodedata.category(each) in _BLANK)
    if len(visible) >= SHORTEST and blanks >= NOISE * len(visible):
        return f"{blanks} of {len(visible)} characters are unreadable (replacement or control characters)"
    if ended:
        return ""
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
    # Those of 0 are of a model that is certain of each token, as where it repeats what it was told.
    if len(logprobs) >= FEWEST_TOKENS and len(set(logprobs)) == 1 and logprobs[0] < 0:
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


def _varied_repeats(completion: Completion) -> str:
    """Say so when an answer says the same with small variations, two things in turn, or repeats after a good beginning."""
    visible = "".join(completion.text.split())
    words = [word for each in completion.text.casefold().split() if (word := "".join(filter(str.isalpha, each)))]
    character, most = Counter(visible).most_common(1)[0]
    if len(visible) >= FEWEST_CHARACTERS and most >= ONE_CHARACTER * len(visible):
        return f"{most} of {len(visible)} characters are {character!r}"
    if len(words) >= FEWEST_WORDS and (most := _most(words, 1)) >= ONE_TOKEN * len(words):
        return f"{most} of {len(words)} words are {Counter(words).most_common(1)[0][0][:20]!r}"
    for what, all_of_them in (("words", words), ("tokens", completion.token_ids or ())):
        if len(all_of_them) >= FEWEST_IN_TURN and (most := _most(all_of_them, 2)) >= TWO_IN_TURN * len(all_of_them):
            return f"{most} of {len(all_of_them)} {what} are the same two"
    tail = visible[len(visible) // 4 :]
    unit = _unit(tail, range(LONG_UNIT, len(tail) // 2 + 1))
    half = visible[len(visible) // 2 :]
    unit = unit or _unit(half, range(1, len(half) // HALF_LOOPS + 1))
    return f"the text repeats {unit[:20]!r} over and over" if unit else ""


def _most(each: Sequence[object], kinds: int) -> int:
    """Count what belongs to the commonest kinds."""
    return sum(count for _, count in Counter(each).most_common(kinds))


def _loop(text: str) -> str:
    """Find the unit whose repetition makes up the last three quarters of a text; empty when there is none.

    The first quarter is left out, because a broken model often begins well.
    """
    tail = text[len(text) // 4 :]
    if len(tail) < SHORTEST:
        return ""
    return _unit(tail, range(1, len(tail) // LOOPS + 1))


def _unit(text: str, lengths: range) -> str:
    """Give the unit of one of these lengths whose repetition makes up a text; empty when there is none."""
    return next((text[:length] for length in lengths if text[length:] == text[:-length]), "")
