"""The command line: `planaria ...`, against a sandbox on this machine or a deployment on AWS.

Exit status: 0 done; 2 bad input, with one sentence on stderr; 1 anything else that failed, likewise;
130 Ctrl-C. With --json stdout has one JSON document and nothing else. Times in JSON are ISO 8601 in UTC
with milliseconds.
"""

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status. arguments: by default the program's own."""
    words = sys.argv[1:] if arguments is None else arguments
    try:
        # Imported here: what a command needs takes long enough for a Ctrl-C to fall into it.
        from planaria.cli.commands import run

        return run(words)
    except KeyboardInterrupt:
        sys.stderr.write("Stopped.\n")
        return 130
