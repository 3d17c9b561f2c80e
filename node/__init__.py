"""Everything that waits: the daemon, its transport, rounds, processes and command line."""

import os

# gRPC's core writes a line to stderr for each failed handshake. The failures that matter are raised as errors.
# It reads this variable when it is imported, which happens only below this package.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
