"""One round: the service that carries out what the machine decides, and the rooms for all that both stand on.

`RoundService` (service) is what the daemon runs; `NodeContext` (context) is what it is given.
"""
