"""The operator's control plane: the admin RPC's server and client, the access to it, and the changes that an operator
may make."""
