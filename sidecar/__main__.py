"""`python -m sidecar` is the same as the command `warmup-sidecar`.

Nothing else lives here.
"""

import sys

from sidecar.cli import main

if __name__ == "__main__":
    sys.exit(main())
