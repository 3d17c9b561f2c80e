"""The operator's control plane: the admin RPC's server and client, who may ask, and what they may change."""
