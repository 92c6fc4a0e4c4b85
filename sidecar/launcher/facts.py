"""What the engine's image and machine are, learned in well under a second and without importing a package.

No key is computed here, and a fact that can't be learned is null.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from typing import Any, Optional

from sidecar.launcher.change import Unchangeable, changed_command, changed_environment
from sidecar.launcher.config_file import digests, shown
from sidecar.launcher.preflight import written_places
from sidecar.launcher.privacy import own_names, shown_value, without_secrets
from sidecar.launcher.script import engine_words
from sidecar.launcher.transfer import kv_transfer

Json = dict[str, Any]

#: For all questions to interpreter and compilers together.
FACTS_S = 3.0
#: What can change compiled code or where it is looked for (vLLM 0.33 envs.py; the compilers' documentation).
RELEVANT = re.compile(
    r"(VLLM_|TORCH|PYTORCH|TRITON|FLASHINFER|DG_|DEEP_GEMM|CUDA|NVIDIA_|NVCC|NCCL|SGLANG|SGL_|TRTLLM|TLLM|TVM_"
    r"|TILELANG|CUTE_|CUTLASS|FLASH_ATT|QUACK_|HUMMING_|B12X_|NUMBA|KMP_|MKL_|HF_HOME$|HF_MODULES_CACHE$"
    r"|XDG_(CACHE|CONFIG)_HOME$|TMPDIR$|PYTHONPATH$|LD_LIBRARY_PATH$|LD_PRELOAD$|OMP_NUM_THREADS$|MAX_JOBS$"
    r"|(CC|CXX|CFLAGS|CXXFLAGS|CPATH|CUDAHOSTCXX)$)"
)
#: Distributions that compile, are compiled against, or decide what is compiled.
PACKAGES = re.compile(
    r"(vllm|sglang|sgl-kernel|tensorrt|torch|triton|pytorch-triton|flashinfer|nvidia-|apache-tvm|tvm-ffi|deep-gemm"
    r"|deep-ep|xgrammar|tilelang|numba|llvmlite|quack|humming|flash-attn|transformers|outlines|llguidance|ninja$|cuda-"
    r"|cupy|compressed-tensors|lmcache|nixl|mooncake|aiter|numpy$|ray$|bitsandbytes|xformers)"
)
WORLD = re.compile(
    r"^(--node-rank|--nnodes|-n|-r|--headless|--enable-expert-parallel|-tp|-pp|-dp|-ep|-pcp|-dcp|--(tp|pp|dp|ep)-size"
    r"|--(tensor|pipeline|data|context|prefill-context|decode-context|expert)-parallel(-.*)?|--distributed-executor-backend)$"
)
WORLD_ENVIRONMENT = re.compile(
    r"^(NODE_RANK|RANK|LOCAL_RANK|WORLD_SIZE|LWS_WORKER_INDEX|LWS_GROUP_SIZE|VLLM_DP_.*|SLURM_(NODEID|NNODES))$"
)
#: One folder for each part of a GPU (NVIDIA MIG user guide, "Device nodes and capabilities").
CAPABILITIES = "/proc/driver/nvidia/capabilities"
GPUS = "/proc/driver/nvidia/gpus"
#: Asks an interpreter about itself without importing a package.
QUESTION = (
    "import json,sys,sysconfig as s;print(json.dumps([sys.version.split()[0],sys.prefix,"
    "s.get_config_var('SOABI') or sys.implementation.cache_tag,[p for p in sys.path if p]]))"
)


def relevant_environment(environment: dict[str, str]) -> dict[str, str]:
    """Pick the variables that may matter for compilation; secrets as digests."""
    return {name: shown_value(name, value) for name, value in sorted(environment.items()) if RELEVANT.match(name)}


def interpreter(argv: list[str], path: str | None) -> str:
    """Find the Python that will run the engine: the first word that is one, or a script of one."""
    # A shell's -c has a command in one word; numactl, env and the like have it behind their options.
    for word in " ".join(argv).split()[:50]:
        found = shutil.which(word, path=path)
        if found and re.match(r"python[\d.]*$", os.path.basename(found)):
            return found
        head = read_text(found, 1024) if found else ""
        # The second form is how pip writes a path too long or with spaces for a shebang.
        match = re.match(r"#!\s*(?:\S*/env\s+(?:-S\s+)?)?(\S*python[\d.]*)\s", head) or re.match(
            r"#!/bin/sh\n'''exec' \"?([^\"\n]*python[\d.]*)\"? ", head
        )
        if match:
            return shutil.which(match[1], path=path) or sys.executable
    return shutil.which("python3", path=path) or sys.executable


def ask(commands: dict[str, list[str]], environment: dict[str, str]) -> dict[str, str]:
    """Run several commands at once and give what each printed; one that fails or hangs is left out."""
    running: dict[str, subprocess.Popen[bytes]] = {}
    answers: dict[str, str] = {}
    deadline = time.monotonic() + FACTS_S
    for name, command in commands.items():
        with contextlib.suppress(OSError, ValueError):
            running[name] = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
    for name, process in running.items():
        try:
            output = process.communicate(timeout=max(0.01, deadline - time.monotonic()))[0]
            answers[name] = output.decode("utf-8", "replace") if process.returncode == 0 else ""
        except subprocess.TimeoutExpired:
            process.kill()
            # One that hangs in the kernel is not waited for.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.2)
        if process.stdout:
            process.stdout.close()
    return answers


def packages(path: list[str]) -> dict[str, Json]:
    """Map distributions to version and digest of RECORD, as the first entry of `path` that has them says."""
    found: dict[str, Json] = {}
    for folder in path:
        with contextlib.suppress(OSError):
            for name in sorted(os.listdir(folder)):
                match = re.match(r"(.+)-([^-]+)\.dist-info$", name)
                known = re.sub(r"[-_.]+", "-", match[1]).lower() if match else ""
                if match and PACKAGES.match(known) and known not in found:
                    found[known] = distribution(os.path.join(folder, name), match[2])
    return found


def distribution(folder: str, version: str) -> Json:
    """Describe one installed distribution; `editable` ones have a RECORD that says nothing of their code."""
    described: Json = {"version": version, "record": None}
    with contextlib.suppress(OSError), open(os.path.join(folder, "RECORD"), "rb") as stream:
        described["record"] = hashlib.sha256(stream.read()).hexdigest()
        # When it was installed: headers are as old as that, and ninja compares them with what it built.
        described["installed"] = int(os.fstat(stream.fileno()).st_mtime)
    if re.search(r'"editable"\s*:\s*true', read_text(os.path.join(folder, "direct_url.json"))):
        described["editable"] = True
    return described


def read_text(path: str, limit: int = 65536) -> str:
    """Read the start of a file; empty when it isn't there."""
    with contextlib.suppress(OSError), open(path, "rb") as stream:
        return stream.read(limit).decode("utf-8", "replace")
    return ""


def gpus(listing: Optional[str] = None) -> list[Json]:
    """List the GPUs that this container has device nodes for, as the driver names them.

    `listing` is what `nvidia-smi -L` told of parts of GPUs; None: there are none. One that does not name a GPU, because it came
    too late, makes no whole GPU of a part; one that names it without parts does, be there parts of others on this machine.
    """
    parts = instances(listing or "")
    found: list[Json] = []
    base = GPUS
    for folder in sorted(os.listdir(base)) if os.path.isdir(base) else []:
        text = read_text(f"{base}/{folder}/information")
        rows = {key: value.strip() for key, value in re.findall(r"^([^:\n]+):(.*)$", text, re.MULTILINE)}
        minor = rows.get("Device Minor", "")
        if not minor or os.path.exists(f"/dev/nvidia{minor}"):
            name, uuid = rows.get("Model", ""), rows.get("GPU UUID", "")
            sizes = parts.get(uuid, ["of unknown size"]) if listing is not None else []
            mig = {"mig": sizes} if sizes else {}
            found.append({"index": len(found), "name": name, "uuid": uuid, "bus": folder, **mig})
    return found


def lists_instances(environment: dict[str, str]) -> bool:
    """Tell whether this container has a part of a GPU (MIG), so that it is worth to ask for its size."""
    visible = [environment.get(name, "") for name in ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")]
    return any("MIG-" in word for word in visible) or bool(glob.glob(f"{CAPABILITIES}/gpu*/mig/gi*"))


def instances(listing: str) -> dict[str, list[str]]:
    """Map GPUs by UUID to the MIG profiles that are visible here, none for a whole one, out of what `nvidia-smi -L` prints."""
    found: dict[str, list[str]] = {}
    sizes: list[str] = []
    for line in listing.splitlines():
        gpu = re.match(r"GPU \d+: .*\(UUID: (GPU-[^)]+)\)", line)
        part = re.match(r"\s+MIG (\S+)\s+Device", line)
        if gpu:
            sizes = found.setdefault(gpu[1], [])
        elif part:
            sizes.append(part[1])
    return found


def cpu() -> Json:
    """Describe the processor that host code is compiled for."""
    first = read_text("/proc/cpuinfo").split("\n\n")[0]
    rows = {key.strip(): value.strip() for key, value in re.findall(r"^([^:\n]+):(.*)$", first, re.MULTILINE)}
    flags = " ".join(sorted((rows.get("flags") or rows.get("Features") or "").split()))
    model = rows.get("model name") or f"{rows.get('CPU implementer', '')} {rows.get('CPU part', '')}".strip()
    digested = hashlib.sha256(flags.encode()).hexdigest()[:16]
    return {"arch": os.uname().machine, "model": model, "flags": digested}


def world(argv: list[str], environment: dict[str, str]) -> dict[str, str]:
    """Collect what says which part of a distributed engine this is."""
    found = {name: value for name, value in environment.items() if WORLD_ENVIRONMENT.match(name)}
    words = engine_words(argv)
    for index, word in enumerate(words):
        flag, equals, value = word.partition("=")
        flag = flag.replace("_", "-")
        if WORLD.match(flag):
            following = "".join(words[index + 1 : index + 2])
            alone = not following or following.startswith("-")
            found[flag.lstrip("-").replace("-", "_")] = value if equals else "true" if alone else following
    return found


def toolchain(environment: dict[str, str]) -> tuple[str | None, str | None]:
    """Find nvcc and the C++ compiler as torch does: by CUDA_HOME and CXX, by PATH, in /usr/local/cuda."""
    path = environment.get("PATH")
    homes = [environment.get("CUDA_HOME"), environment.get("CUDA_PATH")]
    places = [os.path.join(home, "bin", "nvcc") for home in homes if home]
    places += [shutil.which("nvcc", path=path) or "", "/usr/local/cuda/bin/nvcc"]
    nvcc = next((place for place in places if os.path.isfile(place)), None)
    named = (environment.get("CXX") or "g++").split() or ["g++"]
    return nvcc, shutil.which(named[0], path=path) or shutil.which("c++", path=path)


def collect_facts(argv: list[str], environment: dict[str, str], caches: dict[str, str]) -> Json:
    """Describe the engine's image and machine, in well under a second; what can't be learned is null."""
    python = interpreter(argv, environment.get("PATH"))
    nvcc, cxx = toolchain(environment)
    compilers = {name: [path, "--version"] for name, path in (("nvcc", nvcc), ("cxx", cxx)) if path}
    listing = {"mig": ["nvidia-smi", "-L"]} if lists_instances(environment) else {}
    answers = ask({"python": [python, "-c", QUESTION], **compilers, **listing}, environment)
    version, prefix, abi, import_path = None, None, None, list[str]()
    with contextlib.suppress(ValueError):
        # A sitecustomize may print too, before us.
        version, prefix, abi, import_path = json.loads(answers.get("python", "").strip().split("\n")[-1])
    release = re.search(r"\bV(\d[\d.]*)", answers.get("nvcc", ""))
    driver = re.search(r"\s(\d{3,}\.\d+(\.\d+)?)\s", read_text("/proc/driver/nvidia/version"))
    cuda_home = os.path.dirname(os.path.dirname(nvcc)) if nvcc else None
    return {
        **command_facts(argv, environment, caches),
        "python": {"version": version, "prefix": prefix, "abi": abi, "executable": python},
        "packages": packages(import_path),
        "toolchain": {
            "nvcc": release[1] if release else None,
            "nvcc_path": nvcc,
            "cuda_home": environment.get("CUDA_HOME") or environment.get("CUDA_PATH") or cuda_home,
            "cuda_home_real": os.path.realpath(cuda_home) if cuda_home else None,
            "cxx": answers.get("cxx", "").split("\n")[0].strip() or None,
        },
        "driver": {"version": driver[1] if driver else None},
        "gpus": gpus(answers.get("mig", "") if listing else None),
        "cpu": cpu(),
        "libc": os.confstr("CS_GNU_LIBC_VERSION") if "CS_GNU_LIBC_VERSION" in os.confstr_names else None,
        "uid": os.getuid(),
        "gid": os.getgid(),
        "home": environment.get("HOME", ""),
        "cwd": os.getcwd(),
        "hostname": os.uname().nodename,
        "names": own_names(environment),
        "places": written_places(environment, caches, import_path),
    }


def command_facts(argv: list[str], environment: dict[str, str], caches: dict[str, str]) -> Json:
    """Describe the command and its environment alone; nothing of image and machine, so that it costs nothing."""
    return {
        "argv": without_secrets(argv)[0],
        "environment": relevant_environment(environment),
        "overrides": {name: environment[name] for name in overridden(environment, caches)},
        "world": world(argv, environment),
        "kv_transfer": kv_transfer(engine_words(argv)),
        "argv_files": digests(argv),
        "argv_file": shown(argv),
    }


def fallback_facts(
    argv: list[str], environment: dict[str, str], caches: dict[str, str], changes: list[Json]
) -> list[Json]:
    """Give for each fallback the facts that it changes, so that what starts is what is restored for; or its problem."""
    found: list[Json] = []
    for change in changes:
        try:
            command = changed_command(argv, change)
            changed = command_facts(command, changed_environment(environment, change), caches)
            found.append({"text": change["text"], "facts": changed})
        except (Unchangeable, KeyError, TypeError) as problem:
            found.append({"text": str(change.get("text")), "problem": str(problem)})
    return found


def overridden(environment: dict[str, str], caches: dict[str, str]) -> list[str]:
    """Name the cache variables that the user has set to something else: those families live elsewhere."""
    return [name for name in caches if environment.get(name) and environment[name].rstrip("/") != caches[name]]
