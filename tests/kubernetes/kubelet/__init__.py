"""A kubelet's behaviour towards one pod, for tests: containers are local processes in namespaces of their own.

What a pod's containers do is not known here, and nothing is asserted about it.
"""

from tests.kubernetes.kubelet.clock import Clock
from tests.kubernetes.kubelet.container import ContainerLife
from tests.kubernetes.kubelet.life import Life
from tests.kubernetes.kubelet.node import Node, why_no_node
from tests.kubernetes.kubelet.spec import PodSpec, SpecRefused

__all__ = ["Clock", "ContainerLife", "Life", "Node", "PodSpec", "SpecRefused", "why_no_node"]
