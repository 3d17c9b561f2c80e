"""`python -m node.cli`: the same as `fednode`."""

import sys

from node.cli import main
from node.host.child import claim_names, leave_out_directory

claim_names()
leave_out_directory()
sys.exit(main())
