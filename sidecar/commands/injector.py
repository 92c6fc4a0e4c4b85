"""`injector`: the admission webhook that puts the sidecar into pods, its certificate, and what it would do to a file.

What is done to a pod is decided in `kube/injection/`; the answers are given in `web/admission.py`.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sidecar import __version__
from sidecar.commands.numbers import Number
from sidecar.errors import EXIT_NOT_SO, EXIT_OK, YAML_VALUE_ERRORS, UsageError

if TYPE_CHECKING:
    from sidecar.kube.injection.options import Options
    from sidecar.kube.injection.review import Answer
    from sidecar.web.admission import Injector
    from sidecar.web.certificate import ServedCertificate

#: After SIGTERM reviews are still answered for so long: the API server's way here is closed a moment later.
LINGER_S = 5.0
TLS_FOLDER = "/etc/warmup-injector/tls"

_IMAGE = click.option("--image", default="", metavar="REFERENCE", help="The sidecar's image that is put into pods.")
_OPTIONS = click.option(
    "--options",
    "options_file",
    default=None,
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="YAML file with options for every pod, such as `store: pvc:warmup-store`.",
)
_NATIVE = click.option(
    "--native/--no-native",
    default=None,
    help="Native sidecars (Kubernetes 1.29), or plain containers. [default: native]",
)


@click.group(invoke_without_command=True)
@_IMAGE
@_OPTIONS
@_NATIVE
@click.option("--listen", default="0.0.0.0:9443", show_default=True, metavar="HOST:PORT", help="Reviews, over TLS.")
@click.option(
    "--probes", default="0.0.0.0:9797", show_default=True, metavar="HOST:PORT", help="Probes and metrics, without TLS."
)
@click.option("--certificate", default=f"{TLS_FOLDER}/tls.crt", show_default=True, metavar="FILE", help="PEM file.")
@click.option("--key", default=f"{TLS_FOLDER}/tls.key", show_default=True, metavar="FILE", help="PEM file.")
@click.option(
    "--linger",
    default=LINGER_S,
    show_default=True,
    metavar="SECONDS",
    type=Number(min=0),
    help="How long reviews are still answered after SIGTERM.",
)
@click.pass_context
def command(ctx: click.Context, /, **arguments: Any) -> int:
    """Serve the admission webhook that puts the sidecar into pods labelled `warmup-sidecar.io/inject: "true"`.

    A pod is always admitted: with the sidecar, or as it is and with a warning that says why. Certificate and key are
    read again when they change. k8s/injector holds everything that a cluster needs for it.

    \b
    Examples:
      warmup-sidecar injector --image registry.example.com/warmup-sidecar:0.1.0 --options /etc/warmup-injector/options.yaml
      warmup-sidecar injector show --image registry.example.com/warmup-sidecar:0.1.0 deployment.yaml
      warmup-sidecar injector certificate --service warmup-injector --namespace warmup-system
    """
    if ctx.invoked_subcommand is not None:
        return EXIT_OK
    options = _options(arguments)
    if not options.image:
        raise UsageError("The injector needs the sidecar's image: --image, or `image:` in the file of --options.")
    return asyncio.run(_serve(options, arguments))


@command.command("show")
@_IMAGE
@_OPTIONS
@_NATIVE
@click.argument("file", type=click.File("r"))
def show(file: Any, **arguments: Any) -> int:
    """Print what the webhook would make of the pods in a manifest: Pods, Deployments, Jobs and the like.

    The label is not asked for. Warnings go to standard error; exit code 3 when a pod would stay as it is, or when the
    startupPolicy of a LeaderWorkerSet would keep its pods from ever being ready.

    \b
    Example:
      kubectl get deployment my-engine -o yaml | warmup-sidecar injector show --image IMAGE - | kubectl diff -f -
    """
    import yaml

    from sidecar.caches import families
    from sidecar.kube.injection.mutation import inject

    options, code = _options(arguments), EXIT_OK
    try:
        documents = [each for each in yaml.safe_load_all(file) if isinstance(each, dict)]
    except (yaml.YAMLError, *YAML_VALUE_ERRORS) as error:
        raise UsageError(f"{file.name} is not valid YAML: {' '.join(str(error).split())}.") from None
    for document in documents:
        if deadlock := _deadlock(document):
            click.echo(f"{document.get('kind')} {_named(document)}: {deadlock}", err=True)
            code = EXIT_NOT_SO
        for holder, field in _pods(document):
            made = inject(holder[field] if field else holder, options, families.environment("{live}"), __version__)
            for warning in made.warnings:
                click.echo(f"{document.get('kind')} {_named(document)}: {warning}", err=True)
            code = code if made.injected else EXIT_NOT_SO
            if field:
                holder[field] = made.pod
            else:
                document = made.pod
        click.echo("---\n" + yaml.safe_dump(document, sort_keys=False, width=120), nl=False)
    return code


@command.command("certificate")
@click.option("--namespace", required=True, help="Where the injector runs.")
@click.option("--service", required=True, help="The Service that the API server asks.")
@click.option("--secret", default="warmup-injector-tls", show_default=True, help="Where certificate and CA are kept.")
@click.option("--webhook", default="warmup-injector", show_default=True, help="The MutatingWebhookConfiguration.")
def certificate(namespace: str, service: str, secret: str, webhook: str) -> None:
    """Make or renew the webhook's own certificate, for clusters without cert-manager, and end.

    Keeps a CA and a serving certificate (90 days, renewed after 60) in a Secret, and the CA in the webhook
    configuration. Run it as a Job first and as a CronJob from then on, as k8s/injector/self-signed does; running it
    twice does nothing more.

    \b
    Example:
      warmup-sidecar injector certificate --service warmup-injector --namespace warmup-system
    """
    from sidecar.config import Settings
    from sidecar.kube.account import Account
    from sidecar.kube.api import ApiServer
    from sidecar.kube.injection.keeping import Cluster, Wanted, keep

    place = Path(os.environ.get("WARMUP_SERVICE_ACCOUNT") or str(Settings().service_account))
    host, port = (os.environ.get(f"KUBERNETES_SERVICE_{name}", "") for name in ("HOST", "PORT"))

    async def kept() -> list[str]:
        api = ApiServer(Account(place, host, port))
        try:
            now = datetime.datetime.now(datetime.UTC)
            return await keep(Cluster(api), Wanted(namespace, service, secret, webhook), now)
        finally:
            await api.close()

    for told in asyncio.run(kept()):
        click.echo(told)


def _options(arguments: dict[str, Any]) -> Options:
    import yaml

    from sidecar.kube.injection.options import from_file

    content = None
    if path := arguments["options_file"]:
        try:
            content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        except (OSError, yaml.YAMLError, *YAML_VALUE_ERRORS) as error:
            raise UsageError(f"{path} can't be read: {' '.join(str(error).split())}.") from None
    options = from_file(content)
    given = {"image": arguments["image"] or options.image}
    return options.model_copy(update=given | ({} if arguments["native"] is None else {"native": arguments["native"]}))


def _pods(document: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
    """Find what holds pods in a manifest: the object and the field of its pod template, or a Pod itself."""
    if document.get("kind") == "Pod":
        return [(document, "")]
    found: list[tuple[dict[str, Any], str]] = []
    stack: list[dict[str, Any]] = [document]
    while stack:
        here = stack.pop()
        for name, value in here.items():
            if not isinstance(value, dict):
                continue
            pod = value.get("spec")
            if name.lower().endswith("template") and isinstance(pod, dict) and "containers" in pod:
                found.append((here, name))
            else:
                stack.append(value)
    return found


def _deadlock(document: dict[str, Any]) -> str:
    """Say why a LeaderWorkerSet would never start; its pods, which the webhook sees, don't tell."""
    from sidecar.kube.group import never

    spec = document.get("spec")
    if document.get("kind") != "LeaderWorkerSet" or not isinstance(spec, dict):
        return ""
    size = (spec.get("leaderWorkerTemplate") or {}).get("size")
    late = spec.get("startupPolicy") == "LeaderReady"
    return never(size) if late and isinstance(size, int) and size > 1 else ""


def _named(document: dict[str, Any]) -> str:
    return str((document.get("metadata") or {}).get("name", "without a name"))


async def _serve(options: Options, arguments: dict[str, Any]) -> int:
    from sidecar import logs
    from sidecar.caches import families
    from sidecar.kube.injection.certificates import ends_at
    from sidecar.kube.injection.review import Reviewer
    from sidecar.metrics.injector import InjectorMetrics
    from sidecar.web.admission import Injector
    from sidecar.web.certificate import ServedCertificate

    logs.configure("json", "info")
    log = logs.get_logger()

    def told(sentence: str, good: bool) -> None:
        (log.info if good else log.warning)(sentence)

    def answered(answer: Answer, pod: str) -> None:
        (log.info if answer.outcome == "injected" else log.warning)(
            f"A pod was {answer.outcome}.", pod=pod, warnings=list(answer.warnings)
        )

    served = ServedCertificate(Path(arguments["certificate"]), Path(arguments["key"]), told)
    metrics = InjectorMetrics()
    reviewer = Reviewer(options, families.environment("{live}"), __version__)
    injector = Injector(reviewer, metrics, lambda: served.loaded, answered)

    def changed() -> None:
        metrics.certificate_ends(ends_at(served.certificate.read_bytes()).timestamp())

    if served.look():
        changed()
    log.info("The injector starts.", options=json.loads(options.model_dump_json(exclude_defaults=True)))
    looking = asyncio.create_task(served.keep_looking(changed), name="certificate")
    try:
        await _listen(injector, served, arguments)
    finally:
        looking.cancel()
    return EXIT_OK


async def _listen(injector: Injector, served: ServedCertificate, arguments: dict[str, Any]) -> None:
    from sidecar.web.admission import probe_app, review_app
    from sidecar.web.server import serve_app

    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.set)
    probes = await serve_app(probe_app(injector), *_address(arguments["probes"]))
    try:
        reviews = await serve_app(review_app(injector), *_address(arguments["listen"]), tls=served.context)
        try:
            await ending.wait()
            injector.stopping = True
            await asyncio.sleep(arguments["linger"])
        finally:
            await reviews.stop()
    finally:
        await probes.stop()


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not port.isdigit():
        raise UsageError(f"{text} is no address: write HOST:PORT, such as 0.0.0.0:9443.")
    return host.strip("[]"), int(port)
