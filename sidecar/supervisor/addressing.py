"""Tells at run time where WARMUP_ENGINE_URL and the engine's command contradict each other, and when they no longer do.

What a contradiction is stands in `engines/address.py`.
"""

from __future__ import annotations

from sidecar.engines.address import disagreements
from sidecar.engines.outside import hints_of, launcher_place
from sidecar.supervisor.pod import Pod


def compare(pod: Pod) -> None:
    """Compare the settings with the command that runs now, as a notice on the pod; a worker follows its leader's port.

    A file of arguments that can't be read is told on the way: what it says would be missing here, too.
    """
    if pod.follows:
        return
    hints = hints_of((launcher_place(pod.facts), *pod.places))
    if (problem := hints.get("config_problem")) is not None:
        pod.board.tell(str(problem.value), "warning")
    said = disagreements(pod.settings.engine_url, hints, pod.settings.api_key_file is not None)
    for gone in set(pod.disagreements) - set(said):
        pod.mended(gone, "WARMUP_ENGINE_URL and the engine's command agree now.")
    for sentence in said:
        pod.degrade(sentence)
    pod.disagreements = said
