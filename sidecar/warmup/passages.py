"""Natural text for prompts: for engines that calibrate KV scales, and for the output check.

Text only; own words, so that no licence travels with it.
"""

from __future__ import annotations

from collections.abc import Iterable

#: Openings of different kinds of text. About 60 tokens each in usual vocabularies.
PASSAGES = (
    "The harbour was quiet in the early morning. Two fishermen mended their nets on the quay while the "
    "ferry, late as "
    "usual, turned slowly around the lighthouse. When it had moored, the passengers came down the steps one "
    "by one, and",
    "To bake a simple bread, mix flour, water, salt and a little yeast in a large bowl. Let the dough rest "
    "under a cloth "
    "until it has doubled in size, fold it twice, and heat the oven. After that,",
    "Rivers shape the land in two ways. Where the current is fast they carry stones and cut into their beds; "
    "where it "
    "slows down they drop sand and mud and build plains. Over thousands of years",
    'def mean(values):\n    """Return the mean of a non-empty list of numbers."""\n    total = 0.0\n'
    "    for value in values:\n        total += value\n    return total / len(values)\n\n\ndef "
    "median(values):\n",
)

#: A longer text that concurrent requests share as the beginning of their prompts. About 150 tokens.
SHARED = (
    "Minutes of the town council, written for the residents. First, the council discussed the bridge near "
    "the old mill, "
    "which has been closed since spring. An engineer explained that the wooden beams can be replaced within "
    "six weeks, "
    "provided that the river stays low. Second, the library asked for longer opening hours on Saturdays; "
    "several parents "
    "supported this, and the treasurer promised to look for the money. Third, the market will move to the "
    "square behind "
    "the church while the fountain is being repaired. The mayor thanked everybody and asked for "
    "questions.\n\n"
)

#: How each of the concurrent requests goes on after the shared text.
QUESTIONS = (
    "A resident wanted to know when the bridge will open again. The engineer answered that",
    "A teacher asked about the library. The treasurer replied that",
    "A farmer asked where the market will be held. The mayor said that",
    "A child asked why the fountain is broken. Everybody laughed, and then",
)

#: Short and common words: one token each in nearly every vocabulary.
WORDS = (
    "the and of to in for on with at from by about as into like after over between out against during without "
    "before under around among house water light road tree river stone city garden table window door morning "
    "evening summer winter bread music paper story school market bridge hill field horse ship train letter"
).split()


def words_of(numbers: Iterable[int]) -> str:
    """Make a text with a word for each number; different numbers make different texts nearly always."""
    return " ".join(WORDS[number % len(WORDS)] for number in numbers)
