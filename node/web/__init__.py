"""The web page of a node, and its records over HTTP: what the admin calls give, under `/api/v1/` as the `--json` of the
command line."""
