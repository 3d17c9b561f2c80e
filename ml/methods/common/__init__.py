"""Parts that several methods share: losses, prototypes, clustering, masks, and two ways to exchange (all, or peers)."""
