"""DFPL's and FedProto's theorems on convergence, which `fednode plan --bound` goes by: what a round does to the loss at
most, and when it falls. Those of the other papers are in `tests/support/theory`, as nothing here computes by them.

Where a statement does not follow from its own proof, the corrected one is computed, and `printed=True` gives the
paper's. All raise BoundError for numbers that a statement cannot have.
"""
