"""Carries out what the state machine asks for: one loop, named tasks with deadlines, each ending in one event.

No decision about phases is made here; those are in `lifecycle`.

Map: `loop.py` the loop and its tasks, `activities.py` what each command does, `observers.py` the engine and the control
directory turned into events, `serving.py` publishing while the pod serves, `following.py` a worker of a multi-pod
engine. Around warm-up: `history.py` earlier starts, `room.py` the KV cache's size beside theirs, `renewal.py` the restart
after a cold one, `progress.py` an engine that makes none, `divergence.py` ranks that wait for each other,
`traffic_record.py` what users send, `adapters.py` those loaded while serving.
"""

from sidecar.supervisor.loop import Activities, Supervisor

__all__ = ["Activities", "Supervisor"]
