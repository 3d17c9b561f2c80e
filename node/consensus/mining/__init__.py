"""Mining a candidate: sealing the header again and again, and searching its nonce in processes."""
