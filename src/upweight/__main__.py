"""`python -m upweight`, which is what torchrun's `-m upweight` runs."""

import sys

from upweight.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
