"""One round: the service that carries out the machine's decisions, and the rooms that it is built from.

The daemon runs `RoundService` (service); its parts come in a `NodeContext` (context).
"""
