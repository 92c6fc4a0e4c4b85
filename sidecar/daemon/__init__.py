"""The daemon process: its parts are made, started, and waited for here.

The only room beside the command line that reads the environment, the clocks or process-wide state. No decision about
phases is made here.

Map: `assembly.py` makes the parts and takes the directories, `process.py` runs the root tasks and handles signals,
`cluster.py` joins what the settings want of Kubernetes to the pod,
`own_facts.py` what is known of the engine where no launcher reports.
"""

from sidecar.daemon.process import run_daemon

__all__ = ["run_daemon"]
