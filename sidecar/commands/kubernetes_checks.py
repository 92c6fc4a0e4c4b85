"""What `check` tries about Kubernetes: token, rights, the pod's own spec, the group of pods that run one engine.

Nothing is changed at the API server. What is asked is in `kube/review.py`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

from sidecar.commands.finding import Finding
from sidecar.config import Settings
from sidecar.errors import KubernetesError, NotInKubernetes
from sidecar.kube import group, rights

WHAT = "Kubernetes"


def kubernetes(settings: Settings) -> Iterator[Finding]:
    """Try everything about Kubernetes that the settings ask for, and look at the pod where there is a token."""
    place = group.group_of(settings, os.environ)
    if sentence := group.deadlock(place, settings):
        yield Finding(WHAT, "problem", sentence)
    elif place.worker:
        yield Finding(WHAT, "good", f"This is worker {place.index} of {place.size}; it follows {place.leader}.")
    try:
        yield from asyncio.run(_review(settings))
    except NotInKubernetes as error:
        if rights.wanted(settings):
            yield Finding(WHAT, "problem", str(error))
        else:
            yield Finding(WHAT, "note", "Not looked at: nothing asks for the API server, and no token is mounted.")
    except KubernetesError as error:
        yield Finding(WHAT, "problem" if rights.wanted(settings) else "note", str(error))


async def _review(settings: Settings) -> list[Finding]:
    from sidecar.daemon.cluster import account_of
    from sidecar.kube.api import ApiServer
    from sidecar.kube.review import review

    account = account_of(settings, os.environ, os.uname().nodename)
    account.token()
    api = ApiServer(account)
    try:
        found = await review(api, settings)
    finally:
        await api.close()
    if found:
        return [Finding(WHAT, each.level, each.sentence) for each in found]
    names = ", ".join(feature.name for feature in rights.wanted(settings)) or "nothing, which needs none"
    return [Finding(WHAT, "good", f"The pod is as it should be, and all rights are there for: {names}.")]
