"""`completion`: the script that makes a shell complete the command, as click generates it.

Nothing is written to disk: where a shell looks for such scripts is the user's business.
"""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from sidecar.errors import UsageError

#: click's convention: _<PROGRAM>_COMPLETE (click documentation, "Shell Completion").
VARIABLE = "_WARMUP_SIDECAR_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    \b
    Examples:
      warmup-sidecar completion bash > ~/.local/share/bash-completion/completions/warmup-sidecar
      warmup-sidecar completion zsh > "${fpath[1]}/_warmup-sidecar"
      warmup-sidecar completion fish > ~/.config/fish/completions/warmup-sidecar.fish
    """
    root = ctx.find_root()
    found = get_completion_class(shell)
    assert found is not None, "click has a class for every shell of the choice"
    try:
        script = found(root.command, {}, str(root.info_name), VARIABLE).source()
    except RuntimeError as error:
        raise UsageError(f"{shell} can't complete it here: {error}") from error
    click.echo(script)
