"""Regular expressions that a person wrote for answers: compiled, and looked for with a limit of time.

What it means that one is not found is decided in `judging`.
"""

from __future__ import annotations

#: Looking through one answer takes microseconds; an expression that backtracks without end would hold the daemon for ever.
LIMIT_S = 0.1


def compiled(pattern: str) -> str:
    """Give an expression back if it is one, in the syntax of Python's `re`. Raises ValueError with what is wrong."""
    # Loaded only by whoever has expressions; the daemon at rest has none.
    import regex

    try:
        regex.compile(pattern)
    except regex.error as error:
        raise ValueError(f"this is no regular expression: {error}") from None
    return pattern


def is_found(pattern: str, text: str) -> bool:
    """Say whether an expression is found in an answer. Raises TimeoutError past `LIMIT_S` seconds, with what to do."""
    import regex

    try:
        return regex.search(pattern, text, timeout=LIMIT_S, concurrent=True) is not None
    except TimeoutError:
        raise TimeoutError(
            f"{pattern!r} takes over {LIMIT_S:g} s on an answer; it has repeats within repeats, so write it simpler"
        ) from None
