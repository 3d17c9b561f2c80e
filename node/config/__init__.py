"""The files people write: node.yaml, genesis.yaml and the identity, checked once into frozen models."""
