"""Build a real kube-apiserver for the tests from Debian's own source package, outside the checkout, once.

How it is started: `tests/kubernetes/apiserver.py`. etcd is a package of Debian's, see `debian.py`.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.prepare.debian import search_path
from tests.prepare.engine import cache_folder
from tests.prepare.outcome import Outcome, failed, passed, skipped
from tests.prepare.running import run

STAGE = "apiserver"
#: What bookworm's source package `kubernetes` is; it is the last that holds the server.
VERSION = "1.20.2"
#: bookworm's own Go builds a server that crashes at the first answer of a mutating webhook: its vendored JSON library
#: predates Go 1.18. bullseye's 1.15 is what Kubernetes 1.20 was released with.
GO = "golang-1.15"
BUILD_S = 1800.0
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"

#: Generates the one file that the source package lacks, then builds. Source: hack/make-rules of Kubernetes 1.20.
_BUILD = r"""
set -euo pipefail
go build -o "$OUT/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
folders=$(grep -rl --include='*.go' '+k8s:openapi-gen=' vendor/k8s.io/ staging/src/k8s.io pkg cmd 2>/dev/null |
  sed 's#^staging/src/#vendor/#' |
  grep -vE 'vendor/k8s.io/(code-generator|sample-apiserver|kube-openapi|gengo)/|/test' |
  xargs -n1 dirname | sort -u | sed 's#^#k8s.io/kubernetes/#' | paste -sd,)
"$OUT/openapi-gen" --logtostderr --go-header-file hack/boilerplate/boilerplate.generatego.txt -i "$folders" \
  -p k8s.io/kubernetes/pkg/generated/openapi -O zz_generated.openapi -r /dev/null
go build -ldflags "-s -w" -o "$OUT/kube-apiserver" ./cmd/kube-apiserver
"""


def binary() -> Path:
    """Name the file that the server is built into."""
    return cache_folder() / "kubernetes" / VERSION / "kube-apiserver"


def etcd() -> str:
    """Find etcd; empty when it is not there."""
    return shutil.which("etcd", path=search_path()) or ""


def why_not() -> str:
    """Say why the real API server can't be used; empty: it can."""
    if not binary().is_file():
        return f"no kube-apiserver in {binary().parent}; `python -m tests --only {STAGE}` builds it"
    return "" if etcd() else "no etcd; `python -m tests --only packages` installs it"


def prepare_apiserver() -> Outcome:
    """Build the server unless it is there, or say why this machine can't."""
    started = time.monotonic()
    if binary().is_file():
        return passed(STAGE, time.monotonic() - started, f"kube-apiserver {VERSION} was there")
    if lacking := _lacking():
        return skipped(STAGE, lacking)
    with _alone(binary().parent):
        if not binary().is_file() and (trouble := _build()):
            fetched, reason = trouble
            seconds = time.monotonic() - started
            return failed(STAGE, seconds, reason) if fetched else skipped(STAGE, reason, seconds)
    return passed(STAGE, time.monotonic() - started, f"kube-apiserver {VERSION} was built")


def _lacking() -> str:
    for program in ("apt-get", "dpkg", "dpkg-source"):
        if not shutil.which(program):
            return f"kube-apiserver is built from Debian's source package, and there is no {program}"
    if os.uname().machine not in ("x86_64", "aarch64"):
        return f"kube-apiserver {VERSION} is not built on {os.uname().machine}"
    return "" if _mirror() else "no mirror of Debian is known to apt-get"


def _build() -> tuple[bool, str] | None:
    """Fetch and build in a scratch folder of 2 GB; give whether all was fetched, and what went wrong."""
    with tempfile.TemporaryDirectory(prefix="building-", dir=binary().parent) as scratch:
        work = Path(scratch)
        apt = ["apt-get", "-q", "-o", "Acquire::Retries=3", "-c", str(_private_apt(work))]
        compilers = [f"{GO}-go/bullseye", f"{GO}-src/bullseye"]
        for arguments in (["update"], ["download", *compilers], ["source", "--download-only", "kubernetes/bookworm"]):
            if run([*apt, *arguments], folder=work, deadline_s=600) != 0:
                return False, f"apt-get could not {arguments[0]} what kube-apiserver is built from"
        source = work / "go-path" / "src" / "k8s.io" / "kubernetes"
        source.parent.mkdir(parents=True)
        [description] = work.glob("kubernetes_*.dsc")
        unpack = [["dpkg", "-x", str(archive), str(work / "go")] for archive in work.glob(f"{GO}*.deb")]
        # apt-get has checked the digests against the signed index; the uploader's key is in no keyring here.
        unpack.append(["dpkg-source", "--no-check", "-x", str(description), str(source)])
        for command in unpack:
            if run(command, folder=work, deadline_s=600) != 0:
                return False, f"{command[0]} could not unpack what kube-apiserver is built from"
        code = run(["bash", "-c", _BUILD], folder=source, deadline_s=BUILD_S, environment=_go(work))
        if code != 0:
            return True, f"building kube-apiserver ended with exit code {code}"
        os.replace(work / "kube-apiserver", binary())
    return None


def _go(work: Path) -> dict[str, str]:
    """Give the environment of a build that fetches nothing."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GO")}
    own = {
        "GOPATH": str(work / "go-path"),
        "GOCACHE": str(work / "go-cache"),
        "GOTMPDIR": str(work),
        "GO111MODULE": "off",
        "GOPROXY": "off",
        "CGO_ENABLED": "0",
        "OUT": str(work),
    }
    go = work / "go" / "usr" / "lib" / GO.replace("golang", "go") / "bin"
    return {**kept, **own, "PATH": f"{go}{os.pathsep}{kept.get('PATH', os.defpath)}"}


def _private_apt(work: Path) -> Path:
    """Make a configuration of apt's own, so that nothing of the machine's changes."""
    root = work / "apt"
    for folder in ("lists/partial", "cache/archives/partial", "parts"):
        (root / folder).mkdir(parents=True)
    (root / "status").touch()
    signed = f"[signed-by={KEYRING}] {_mirror()}"
    lines = [f"deb {signed} bullseye main", f"deb {signed} bookworm main", f"deb-src {signed} bookworm main"]
    (root / "sources.list").write_text("\n".join(lines) + "\n", encoding="ascii")
    places = {
        "Dir::Etc::sourcelist": root / "sources.list",
        "Dir::Etc::sourceparts": root / "parts",
        "Dir::State::lists": root / "lists",
        "Dir::State::status": root / "status",
        "Dir::Cache": root / "cache",
        "Acquire::Languages": "none",
    }
    if os.geteuid() == 0:
        # The scratch folder is nobody else's, so apt's own user can't write there.
        places["APT::Sandbox::User"] = "root"
    (root / "apt.conf").write_text("".join(f'{name} "{value}";\n' for name, value in places.items()), encoding="ascii")
    return root / "apt.conf"


def _mirror() -> str:
    """Give the address from which this machine gets Debian; empty when it is none."""
    return next(
        iter(_addresses([Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))])), ""
    )


def _addresses(lists: Sequence[Path]) -> Iterator[str]:
    for path in lists:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
        found = re.findall(r"(?:^URIs:|^deb\s+(?:\[[^]]*\])?)\s*(\S+/debian/?)(?:\s|$)", "\n".join(lines), re.MULTILINE)
        yield from (address.rstrip("/") for address in found)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
