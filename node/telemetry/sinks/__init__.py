"""Sinks: files and services, besides the store, that receive the record of each round for people to look at."""
