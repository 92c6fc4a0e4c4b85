"""Times as Kubernetes writes them: RFC 3339 in UTC, in seconds or microseconds.

No clock is read here.
"""

from __future__ import annotations

from datetime import UTC, datetime


def seconds(at: float) -> str:
    """Give seconds since the epoch as meta/v1 Time."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def microseconds(at: float) -> str:
    """Give seconds since the epoch as meta/v1 MicroTime, which eventTime of an Event is."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
