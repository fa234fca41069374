"""`python -m planaria.checkpoint VERB --option=value ...`."""

import sys

from planaria.checkpoint.command_line import main

if __name__ == "__main__":
    sys.exit(main())
