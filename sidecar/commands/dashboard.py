"""`dashboard`: print the Grafana dashboard that belongs to this version, or compare it with a file.

What is on it is declared in `metrics/`.
"""

from __future__ import annotations

from pathlib import Path

import click

from sidecar.errors import EXIT_NOT_SO, EXIT_OK, UsageError


@click.command()
@click.option(
    "--check",
    "checked",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Compare with a file; exit code 3 when it differs.",
)
def command(checked: Path | None) -> int:
    """Print the Grafana dashboard as JSON, to be imported or put into a ConfigMap.

    It asks for the metrics of this version, for pods that the PodMonitor of k8s/components/monitoring scrapes.

    \b
    Examples:
      warmup-sidecar dashboard > dashboard.json
      warmup-sidecar dashboard --check dashboard.json
    """
    from sidecar.metrics import dashboard

    text = dashboard.text()
    if checked is None:
        click.echo(text, nl=False)
        return EXIT_OK
    try:
        there = checked.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{checked} can't be read ({error}); name a file that `warmup-sidecar dashboard` wrote."
        ) from error
    if there != text:
        click.echo(
            f"{checked} is not this version's dashboard; `warmup-sidecar dashboard > {checked}` writes it.", err=True
        )
        return EXIT_NOT_SO
    return EXIT_OK
