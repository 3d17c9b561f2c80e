"""One round: the pure machine that decides, the service that carries out, and what they hear, sign, mine and sync.

`RoundService` (service) is what the daemon runs; `NodeContext` (context) is what it is given.
"""
