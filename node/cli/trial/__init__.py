"""Commands of federations to try: a demo on this machine, and the files of a testnet."""
