"""Names of environment variables: which are settings, which only look like one, which are for later versions.

What a setting means is declared in its group.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

PREFIX = "WARMUP_"
FILE_VARIABLE = "WARMUP_CONFIG"
#: Variables with our prefix that are no settings: the file's name, the demo's, the lone launcher's, the tests'.
FOREIGN = frozenset({FILE_VARIABLE, "WARMUP_DEMO_PIP_ARGS", "WARMUP_TEST_SCREENSHOTS", "WARMUP_ATTEMPT"})
#: What a launcher without a sidecar goes by, such as WARMUP_LAUNCHER_WAIT_S; in child mode both see one environment.
LAUNCHER_PREFIX = "WARMUP_LAUNCHER_"
#: What counts instead of a value that can't be used, where the default would do what nobody asked for.
CAREFUL = {"store_mode": "read-only"}

#: Variables that Kubernetes adds for every Service of the namespace; one called `warmup…` makes them look like ours.
#: Kubernetes documentation, "Discovering services: environment variables".
SERVICE_LINK = re.compile(r"_(SERVICE_(HOST|PORT)(_.+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$")

#: Names reserved for later versions, with what this version does when they are set.
NOT_YET: Mapping[str, str] = {}


def variable(field: str) -> str:
    """Name the environment variable of a field."""
    return PREFIX + field.upper()
