"""Mining a candidate: the header sealed anew, and its nonce searched for in processes."""
