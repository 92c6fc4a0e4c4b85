"""All settings in one model; its groups are the files beside this one.

No setting is declared here.
"""

from __future__ import annotations

from sidecar.config.caches import CacheSettings
from sidecar.config.engine import EngineSettings
from sidecar.config.kubernetes import KubernetesSettings
from sidecar.config.serving import ServingSettings
from sidecar.config.warmup import WarmupSettings


# The last base's settings come first, in this model and in the README's table.
class Settings(KubernetesSettings, ServingSettings, WarmupSettings, CacheSettings, EngineSettings):
    """All settings, frozen. Durations in seconds, sizes in bytes.

    Each field is the environment variable `WARMUP_<FIELD>` and the key `<field>` of the YAML file.
    """
