"""`python -m planaria.slurm VERB --option=value ...`."""

import sys

from planaria.slurm.command_line import main

if __name__ == "__main__":
    sys.exit(main())
