"""Make models that a golden check must tell apart from the tiny one, in the engine's Python: torch is there.

Nothing of the project is imported here. Usage:

    golden_models.py sharp TINY FOLDER                          a tiny model that is sure of what it says
    golden_models.py other TINY FOLDER SEED                     the same shape and tokenizer, other weights
    golden_models.py perturbed MODEL FOLDER SEED,SIZE,SHARE …   one model in FOLDER/SEED for each
"""

from __future__ import annotations

import json
import random
import shutil
import sys
from pathlib import Path
from typing import Any

WEIGHTS = "model.safetensors"
#: The tiny model's logits differ by 0.3 from token to token, those of trained models by several; so they are scaled.
SHARPER = 10.0


def copied(source: Path, folder: Path) -> Path:
    """Copy a model's files."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source, folder)
    return folder


def read(folder: Path) -> dict[str, Any]:
    """Read all weights."""
    from safetensors.torch import load_file

    return dict(load_file(folder / WEIGHTS))


def write(folder: Path, weights: dict[str, Any]) -> None:
    """Write all weights."""
    from safetensors.torch import save_file

    save_file(
        {name: value.contiguous() for name, value in weights.items()}, folder / WEIGHTS, metadata={"format": "pt"}
    )


def make_sharp(source: Path, folder: Path) -> None:
    """Give the model a head of its own, so that it does not repeat its last token, and sharper logits."""
    import torch

    weights = read(copied(source, folder))
    head = torch.randn(weights["model.embed_tokens.weight"].shape, generator=torch.Generator().manual_seed(7))
    weights["lm_head.weight"] = (0.02 * head).to(torch.bfloat16)
    weights["model.norm.weight"] = weights["model.norm.weight"] * SHARPER
    write(folder, weights)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))


def perturb(source: Path, folder: Path, seed: int, size: float, share: float) -> None:
    """Add noise of `size` times its own spread to a random `share` of the tensors."""
    import torch

    weights = read(copied(source, folder))
    names, noise = sorted(weights), torch.Generator().manual_seed(seed)
    chosen = random.Random(seed).sample(names, max(1, round(share * len(names))))
    for name in chosen:
        value = weights[name].float()
        spread = value.std() if value.ndim > 1 else value.abs().mean()
        weights[name] = (value + size * spread * torch.randn(value.shape, generator=noise)).to(weights[name].dtype)
    write(folder, weights)


def make_other(source: Path, folder: Path, seed: int) -> None:
    """Draw all weights of two dimensions anew."""
    import torch

    weights, noise = read(copied(source, folder)), torch.Generator().manual_seed(seed)
    for name, value in weights.items():
        if value.ndim > 1:
            weights[name] = (value.float().std() * torch.randn(value.shape, generator=noise)).to(value.dtype)
    write(folder, weights)


def main() -> None:
    """Do what the command line says."""
    kind, source, folder = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    folder.parent.mkdir(parents=True, exist_ok=True)
    if kind == "sharp":
        make_sharp(source, folder)
    elif kind == "other":
        make_other(source, folder, int(sys.argv[4]))
    else:
        for job in sys.argv[4:]:
            seed, size, share = job.split(",")
            perturb(source, folder / seed, int(seed), float(size), float(share))


if __name__ == "__main__":
    main()
