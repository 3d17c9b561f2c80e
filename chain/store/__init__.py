"""The store of a node: the one part of `chain` that touches a disk. Signed objects, blocks, blobs and a watermark."""
