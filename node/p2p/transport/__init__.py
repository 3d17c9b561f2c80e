"""The transport between members: one seam (`base`), over gRPC (`rpc`)."""
