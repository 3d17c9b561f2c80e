"""The web page of a node, and its records over HTTP: the answers of the admin calls, under `/api/v1/`, as the `--json`
of the command line."""
