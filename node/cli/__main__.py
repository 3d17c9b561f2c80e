"""`python -m node.cli`: the same as `fednode`."""

import sys

from node.cli import main

sys.exit(main())
