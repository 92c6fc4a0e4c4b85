"""What `check` says of the engine's command against the settings: as the launcher saw it, else as the Pod's spec has it.

What a contradiction is stands in `engines/address.py`; nothing is changed here.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

from sidecar.commands.finding import Finding
from sidecar.config import Settings
from sidecar.engines.outside import Place, hints_of, launcher_place
from sidecar.errors import KubernetesError
from sidecar.kube import group

WHAT = "engine's command"


def engine_command(settings: Settings) -> Iterator[Finding]:
    """Compare WARMUP_ENGINE_URL and WARMUP_API_KEY_FILE with the command; says nothing where no command is known."""
    from sidecar.engines.address import agreement, disagreements

    if group.group_of(settings, os.environ).worker:
        return
    hints = hints_of(_launched(settings) or _specified(settings))
    if (problem := hints.get("config_problem")) is not None:
        yield Finding(WHAT, "note", str(problem.value))
    said = disagreements(settings.engine_url, hints, settings.api_key_file is not None)
    yield from (Finding(WHAT, "problem", sentence) for sentence in said)
    if not said and (fits := agreement(settings.engine_url, hints)):
        yield Finding(WHAT, "good", fits)


def _launched(settings: Settings) -> tuple[Place, ...]:
    """Give what the launcher of a running engine has written of its command."""
    from sidecar.handshake import ControlDirectory

    current = ControlDirectory(settings.control_dir, "").current()
    facts = current.facts if current is not None else None
    return (launcher_place(facts),) if facts else ()


def _specified(settings: Settings) -> tuple[Place, ...]:
    """Give what the Pod's spec says of it, where a token for the API server is mounted and may read the pod."""
    try:
        return asyncio.run(_asked(settings))
    except KubernetesError:
        # What is wrong there is told by the check about Kubernetes.
        return ()


async def _asked(settings: Settings) -> tuple[Place, ...]:
    from sidecar.daemon.cluster import account_of
    from sidecar.daemon.own_facts import Told, places
    from sidecar.kube.api import ApiServer
    from sidecar.kube.facts import pod_facts
    from sidecar.kube.own_pod import OwnPod

    account = account_of(settings, os.environ, os.uname().nodename)
    account.token()
    api = ApiServer(account)
    try:
        return places(Told(pod=pod_facts(await OwnPod(api).read())))
    finally:
        await api.close()
