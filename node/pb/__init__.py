"""Generated protobuf and gRPC code; `proto/generate.sh` writes it."""
