"""Everything that waits: the daemon, its transport, rounds, processes and command line."""

import os

# gRPC's core writes to stderr by itself, a line for each failed handshake. What matters reaches us as errors.
# It looks at this when it is imported, which only what is below this package does.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
