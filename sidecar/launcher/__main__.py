"""The first thing that runs in the engine's container; whatever is wrong with the rest, the engine starts.

Nothing else belongs here.
"""

import os
import sys

try:
    from sidecar.launcher.start import main
except Exception as problem:  # the launcher itself is damaged, or this Python is too old for it
    command = sys.argv[sys.argv.index("--") + 1 :] if "--" in sys.argv else []
    os.write(2, f"warmup launcher: it can't run here ({problem}); the engine starts without it.\n".encode())
    if not command:
        sys.exit(2)
    os.execvp(command[0], command)

sys.exit(main(sys.argv[1:]))
