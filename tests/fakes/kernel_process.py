"""The scripted engine with hidden kernels as a process of its own: `python -m tests.fakes.kernel_process PORT LIVE SEED`.

A fourth argument scales the time that its steps take; 0: none.

Only started here; what it does is in `kernel_engine.py`.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.fakes.engine_script import Script
from tests.fakes.kernel_engine import KernelEngine, kernel_folder
from tests.fakes.kernel_model import KernelModel


async def _serve(port: int, live: Path, seed: int, scale: float) -> None:
    script = Script(max_model_len=200_000, max_num_batched_tokens=4096, max_num_seqs=1024, kv_blocks=1 << 20)
    model = KernelModel.drawn(seed, max_tokens=4096, max_batch=64, folder=kernel_folder(live))
    async with KernelEngine(model, script, scale=scale, port=port):
        await asyncio.Event().wait()


if __name__ == "__main__":
    port, live, seed, scale = [*sys.argv[1:], "1"][:4]
    asyncio.run(_serve(int(port), Path(live), int(seed), float(scale)))
