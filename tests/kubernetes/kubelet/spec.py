"""A Pod as YAML writes it, as far as it is emulated: what is unknown here is refused, not passed over.

Nothing runs here. Fields without an effect are listed as such, each with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, Self

import pydantic
from pydantic.alias_generators import to_camel

Kind = Literal["init", "sidecar", "app"]


class SpecRefused(ValueError):
    """The Pod can't be emulated, or no kubelet would be given it; the message says what is wrong."""


class _Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True, arbitrary_types_allowed=False
    )


class HttpGet(_Strict):
    """A GET, from the node to the pod's address; `port` is a number or the name of a container port."""

    path: str = "/"
    port: int | str
    scheme: Literal["HTTP"] = "HTTP"
    http_headers: tuple[Mapping[str, str], ...] = ()


class Exec(_Strict):
    """A command inside the container; 0 is success."""

    command: tuple[str, ...]


class Sleep(_Strict):
    """A pause. "Container Lifecycle Hooks", section "Hook handler implementations"."""

    seconds: float


class Handler(_Strict):
    """What a probe or a hook does: one of these."""

    http_get: HttpGet | None = None
    exec: Exec | None = None
    sleep: Sleep | None = None

    @pydantic.model_validator(mode="after")
    def _one(self) -> Self:
        if len([each for each in (self.http_get, self.exec, self.sleep) if each is not None]) != 1:
            raise ValueError("exactly one of httpGet, exec and (in hooks) sleep")
        return self


class Probe(Handler):
    """Numbers and defaults: "Configure Liveness, Readiness and Startup Probes", section "Configure Probes"."""

    initial_delay_seconds: float = 0
    period_seconds: float = pydantic.Field(10, ge=1)
    timeout_seconds: float = pydantic.Field(1, ge=1)
    success_threshold: int = pydantic.Field(1, ge=1)
    failure_threshold: int = pydantic.Field(3, ge=1)
    termination_grace_period_seconds: float | None = None


class Lifecycle(_Strict):
    """Hooks of a container; postStart is not emulated."""

    pre_stop: Handler | None = None


class FieldRef(_Strict):
    """A field of the pod."""

    field_path: Literal[
        "metadata.name",
        "metadata.namespace",
        "metadata.uid",
        "spec.nodeName",
        "spec.serviceAccountName",
        "status.podIP",
    ]
    api_version: str = "v1"


class EnvSource(_Strict):
    """Where a variable's value comes from."""

    field_ref: FieldRef


class Env(_Strict):
    """One variable."""

    name: str
    value: str = ""
    value_from: EnvSource | None = None


class Mount(_Strict):
    """Where a volume is seen."""

    name: str
    mount_path: str
    read_only: bool = False


class Port(_Strict):
    """A port's name, for probes."""

    container_port: int
    name: str = ""
    protocol: str = "TCP"


class Container(_Strict):
    """One container."""

    name: str
    image: str
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    working_dir: str = ""
    env: tuple[Env, ...] = ()
    ports: tuple[Port, ...] = ()
    volume_mounts: tuple[Mount, ...] = ()
    startup_probe: Probe | None = None
    readiness_probe: Probe | None = None
    liveness_probe: Probe | None = None
    lifecycle: Lifecycle = Lifecycle()
    restart_policy: Literal["Always"] | None = None

    # Without effect: processes of one machine, all of one user, without cgroups and registries.
    resources: Any = None
    security_context: Any = None
    image_pull_policy: str = ""

    def port(self, named: int | str) -> int:
        """Give the number of a port. Raises SpecRefused for a name that isn't there."""
        if isinstance(named, int):
            return named
        for port in self.ports:
            if port.name == named:
                return port.container_port
        raise SpecRefused(f"container {self.name} has no port named {named}")

    @pydantic.model_validator(mode="after")
    def _probes_are_valid(self) -> Self:
        for name in ("startup_probe", "liveness_probe"):
            probe = getattr(self, name)
            # "Configure Probes": must be 1 for liveness and startup Probes.
            if probe is not None and probe.success_threshold != 1:
                raise ValueError(f"{self.name}: successThreshold of {to_camel(name)} must be 1")
        for name in ("startup_probe", "liveness_probe", "readiness_probe"):
            probe = getattr(self, name)
            if probe is not None and probe.sleep is not None:
                raise ValueError(f"{self.name}: {to_camel(name)} can't sleep")
            if probe is not None and probe.http_get is not None:
                self.port(probe.http_get.port)
        # "Configure Probes", section "Probe-level terminationGracePeriodSeconds": not for readiness probes.
        if self.readiness_probe is not None and self.readiness_probe.termination_grace_period_seconds is not None:
            raise ValueError(f"{self.name}: readinessProbe takes no terminationGracePeriodSeconds")
        return self


class Volume(_Strict):
    """One volume. What comes from the API server is empty here, and must be optional."""

    name: str
    empty_dir: Any = None
    host_path: Any = None
    persistent_volume_claim: Any = None
    config_map: Any = None
    secret: Any = None
    projected: Any = None


class Gate(_Strict):
    """A condition that somebody else sets."""

    condition_type: str


class PodSpec(_Strict):
    """A pod's `spec`."""

    containers: tuple[Container, ...] = pydantic.Field(min_length=1)
    init_containers: tuple[Container, ...] = ()
    volumes: tuple[Volume, ...] = ()
    restart_policy: Literal["Always", "OnFailure", "Never"] = "Always"
    termination_grace_period_seconds: float = 30
    readiness_gates: tuple[Gate, ...] = ()
    service_account_name: str = "default"

    # Without effect: there is one node, nobody else on it, and no API server.
    security_context: Any = None
    automount_service_account_token: bool = True
    node_selector: Any = None
    tolerations: Any = None
    affinity: Any = None
    topology_spread_constraints: Any = None
    priority_class_name: str = ""
    runtime_class_name: str = ""
    image_pull_secrets: Any = None
    enable_service_links: bool = True

    @classmethod
    def parse(cls, spec: Mapping[str, Any]) -> PodSpec:
        """Read a pod's spec. Raises SpecRefused."""
        try:
            return cls.model_validate(spec)
        except pydantic.ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"])
            raise SpecRefused(f"{place}: {first['msg'].removeprefix('Value error, ')}") from error

    def kinds(self) -> Iterator[tuple[Container, Kind]]:
        """Give every container with its kind, in the order of their start.

        "Sidecar Containers", section "Sidecar containers in Kubernetes": an init container with restartPolicy Always.
        """
        for container in self.init_containers:
            yield container, "sidecar" if container.restart_policy == "Always" else "init"
        for container in self.containers:
            yield container, "app"

    @pydantic.model_validator(mode="after")
    def _fits_together(self) -> Self:
        names = [container.name for container, _ in self.kinds()]
        if len(names) != len(set(names)):
            raise ValueError("container names must differ")
        volumes = {volume.name for volume in self.volumes}
        for container, kind in self.kinds():
            probes = (container.startup_probe, container.readiness_probe, container.liveness_probe)
            # "Init Containers", section "Differences from regular containers".
            if kind == "init" and (any(probes) or container.lifecycle.pre_stop):
                raise ValueError(f"{container.name}: init containers have no probes and no lifecycle")
            if kind == "app" and container.restart_policy:
                raise ValueError(f"{container.name}: restartPolicy of a container is for init containers")
            for mount in container.volume_mounts:
                if mount.name not in volumes:
                    raise ValueError(f"{container.name} mounts the volume {mount.name}, which is not there")
        return self
