"""How members reach each other: one seam (`base`), over gRPC (`rpc`) and within a process (`memory`)."""
