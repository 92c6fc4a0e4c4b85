"""Every error of the product, with its exit code, its outcome and whether another try makes sense.

No handling lives here: adapters raise these, `supervisor.py` and `cli.py` turn them into outcomes and exit codes.
"""

from __future__ import annotations

from typing import ClassVar

EXIT_OK = 0
EXIT_USAGE = 2
EXIT_NOT_SO = 3
EXIT_BUG = 70

#: What PyYAML 6 lets through beside its YAMLError for a value that is not of its tag, such as the KeyError of `!!bool maybe`,
#: and for one that is nested too deep.
YAML_VALUE_ERRORS = (ValueError, ArithmeticError, LookupError, AttributeError, TypeError, RecursionError)


class WarmupError(Exception):
    """Say in one sentence what is wrong and what to do about it.

    `exit_code` is what a one-shot command ends with, `outcome` the word used in status and metrics,
    `retry` whether the same call may succeed later without anybody changing anything.
    """

    exit_code: ClassVar[int] = EXIT_NOT_SO
    outcome: ClassVar[str] = "failed"
    retry: ClassVar[bool] = False


class UsageError(WarmupError):
    """A command was called in a way that can't work."""

    exit_code = EXIT_USAGE
    outcome = "wrong_use"


class SettingsError(WarmupError):
    """A setting is unknown, malformed or out of range."""

    exit_code = EXIT_USAGE
    outcome = "wrong_setting"


class ProfileError(WarmupError):
    """A warm-up profile can't be found, parsed or used with this engine."""

    exit_code = EXIT_USAGE
    outcome = "wrong_profile"


class GoldenError(WarmupError):
    """A golden file or a file of golden prompts can't be found, parsed, made or used with this engine."""

    exit_code = EXIT_USAGE
    outcome = "wrong_golden"


class NotSo(WarmupError):
    """What was asked for does not hold: not ready, not running, tables differ."""

    outcome = "not_so"


class DaemonUnreachable(WarmupError):
    """No daemon answers where one was expected."""

    outcome = "daemon_unreachable"
    retry = True


class PrometheusUnavailable(WarmupError):
    """No Prometheus answers where one was named, or something else does."""

    outcome = "prometheus_unavailable"
    retry = True


class FileUnreadable(WarmupError):
    """A small file holds what can't be used: no JSON, not an object, too large, or not a plain file."""

    outcome = "file_unreadable"


class StoreUnavailable(WarmupError):
    """The store is missing, unreachable, or its disk answers with errors."""

    outcome = "store_unavailable"
    retry = True


class StoreReadOnly(WarmupError):
    """The store can be read and not written."""

    outcome = "read_only"


class StoreFull(WarmupError):
    """The store's disk or quota is exhausted."""

    outcome = "store_full"
    retry = True


class StoreDamaged(WarmupError):
    """Something in the store is not what its manifest says, or can't be parsed."""

    outcome = "store_damaged"


class FormatFromTheFuture(StoreDamaged):
    """A file was written by a newer version than this one."""

    outcome = "newer_format"


class Untrusted(StoreDamaged):
    """A generation that no trusted key vouches for. `reason` is the word for metrics, `final` whether waiting can't help."""

    reason: str = "untrusted"
    final: bool = True

    outcome = "untrusted"


class Unsigned(Untrusted):
    """A generation without a signature; another client's may come into sight late."""

    reason = "unsigned"
    final = False


class KeysUnusable(WarmupError):
    """A file with keys for signatures is missing, holds something else, or is open to others."""

    outcome = "keys_unusable"


class LiveCacheUnusable(WarmupError):
    """The live cache can't be used: not writable, on a network filesystem, too small, or another daemon's."""

    outcome = "live_cache_unusable"


class LostRace(WarmupError):
    """Somebody else created the same name first; rebase and try again."""

    outcome = "lost_race"
    retry = True


class HandshakeError(WarmupError):
    """A file in the control directory can't be read or written."""

    outcome = "handshake_failed"
    retry = True


class EngineError(WarmupError):
    """The engine answered in a way that can't be used."""

    outcome = "engine_error"
    retry = True


class NotAnEngine(EngineError):
    """Something answers on the engine's port that is not an inference engine."""

    outcome = "not_an_engine"


class EngineUnauthorized(EngineError):
    """The engine refuses the API key, or wants one."""

    outcome = "unauthorized"
    retry = False


class ModelNotServed(EngineError):
    """The engine serves other models than the one it was asked for."""

    outcome = "model_not_served"
    retry = False


class EngineAsleep(EngineError):
    """The engine sleeps, so nothing may be sent to it."""

    outcome = "engine_asleep"


class EngineGone(EngineError):
    """Nothing answers on the engine's port any more."""

    outcome = "engine_gone"


class EngineInstallError(WarmupError):
    """The engine for the demo or the tests can't be prepared on this machine."""

    outcome = "engine_install_failed"


class EngineNotAvailable(EngineInstallError):
    """This machine can't have the engine: something it needs is missing, or no build of it is published for it."""

    outcome = "engine_not_available"


class DemoFailed(WarmupError):
    """A start of the demo did not get where it should: the engine or the sidecar ended, or took too long."""

    outcome = "demo_failed"


class ListenFailed(WarmupError):
    """The address of probes and metrics can't be opened."""

    outcome = "listen_failed"
    retry = True


class ControlSocketTaken(WarmupError):
    """Another daemon lives in the same control directory."""

    outcome = "control_socket_taken"
    retry = True


class ControlSocketUnusable(WarmupError):
    """The control socket can't be made."""

    outcome = "control_socket_unusable"


class GpuUnavailable(WarmupError):
    """NVML is absent or doesn't answer. `kind` is the word for metrics."""

    kind: str = "other"

    outcome = "gpu_unavailable"
    retry = True


class KubernetesError(WarmupError):
    """The API server answered in a way that can't be used."""

    outcome = "kubernetes_error"
    retry = True


class NotInKubernetes(KubernetesError):
    """Nothing tells where the API server is, or there is no token to show it."""

    outcome = "not_in_kubernetes"


class KubernetesUnreachable(KubernetesError):
    """The API server does not answer, or not in time."""

    outcome = "kubernetes_unreachable"


class KubernetesUnauthorized(KubernetesError):
    """The API server does not accept the token."""

    outcome = "kubernetes_unauthorized"


class KubernetesForbidden(KubernetesError):
    """The service account lacks a right."""

    outcome = "kubernetes_forbidden"


class KubernetesNotFound(KubernetesError):
    """The API server knows no such object."""

    outcome = "kubernetes_not_found"


class KubernetesConflict(KubernetesError):
    """Somebody else changed the object first, or it is another of the same name."""

    outcome = "kubernetes_conflict"


class KubernetesBusy(KubernetesError):
    """The API server asks for a pause."""

    outcome = "kubernetes_busy"


class KubernetesRefused(KubernetesError):
    """The API server finds the request invalid."""

    outcome = "kubernetes_refused"
    retry = False


def every_error() -> list[type[WarmupError]]:
    """List all error classes, the root first, for the generated table of the README."""
    found: list[type[WarmupError]] = [WarmupError]
    for known in found:
        found.extend(child for child in known.__subclasses__() if child not in found)
    return found
