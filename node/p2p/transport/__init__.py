"""The transport between members: one seam (`base`), over gRPC (`rpc`) and within a process (`memory`)."""
