"""The rules of blocks and votes: bytes, signatures, proof of work, finality and the store. No socket, no loop."""
