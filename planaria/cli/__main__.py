import sys

from planaria.cli import main

sys.exit(main())
