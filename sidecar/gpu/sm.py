"""SM versions, declared once: which architecture and which products, and how to tell one from a product's
name.

Nothing is asked of a GPU here; that is `nvml.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Sm:
    """One SM version: name such as `sm90`, architecture, and names of products as NVML writes them.

    `unified`: GPU and CPU share one memory, so that the GPU has none of its own to show.
    """

    name: str
    architecture: str
    products: tuple[str, ...]
    unified: bool = False


#: Source: NVIDIA, "CUDA GPU Compute Capability" (developer.nvidia.com/cuda-gpus), data-center products first.
TABLE: tuple[Sm, ...] = (
    Sm("sm70", "Volta", ("V100", "TITAN V")),
    Sm("sm75", "Turing", ("T4", "Quadro RTX 8000", "Quadro RTX 6000", "RTX 2080")),
    Sm("sm80", "Ampere", ("A100", "A800", "A30")),
    Sm(
        "sm86",
        "Ampere",
        ("A40", "A10", "A10G", "A16", "A2", "RTX A6000", "RTX A5000", "RTX A4000", "RTX 3090", "RTX 3080"),
    ),
    Sm("sm87", "Ampere", ("Orin",), unified=True),
    Sm(
        "sm89",
        "Ada Lovelace",
        ("L40S", "L40", "L4", "L20", "RTX 6000 Ada", "RTX 5000 Ada", "RTX 4090", "RTX 4080"),
    ),
    Sm("sm90", "Hopper", ("H200", "H100", "H800", "H20", "GH200")),
    Sm("sm100", "Blackwell", ("B200", "GB200")),
    Sm("sm103", "Blackwell Ultra", ("B300", "GB300")),
    Sm("sm110", "Blackwell", ("Thor",), unified=True),
    Sm("sm120", "Blackwell", ("RTX PRO 6000 Blackwell", "RTX PRO 5000 Blackwell", "RTX 5090", "RTX 5080")),
    Sm("sm121", "Blackwell", ("GB10",), unified=True),
)

BY_NAME: Mapping[str, Sm] = {row.name: row for row in TABLE}

#: README: the columns of `documented()`.
HEADINGS = ("SM version", "architecture", "products")


def documented() -> list[tuple[str, str, str]]:
    """List the SM versions for the README: name, architecture, products."""
    return [(sm.name, sm.architecture, ", ".join(sm.products)) for sm in TABLE]


def from_capability(major: int, minor: int) -> str:
    """Name the SM version of a compute capability: (9, 0) is `sm90`, (10, 3) is `sm103`."""
    return f"sm{major}{minor}"


def from_product(name: str) -> str | None:
    """Tell the SM version from a product's name such as `NVIDIA H100 80GB HBM3`; else None.

    The product must stand in the name as whole words: `NVIDIA A100` is no `A10`, `NVIDIA GH200` no `H200`.
    """
    for sm in TABLE:
        if any(re.search(rf"(?<!\w){re.escape(product)}(?!\w)", name) for product in sm.products):
            return sm.name
    return None
