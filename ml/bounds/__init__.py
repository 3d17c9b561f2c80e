"""DFPL's and FedProto's theorems on convergence, which `fednode plan --bound` computes: the most that a round can add
to the loss, and the conditions under which the loss falls. Those of the other papers are in `tests/support/theory`, as
nothing here computes by them.

Where a statement does not follow from its own proof, the corrected one is computed, and `printed=True` returns the
paper's. All raise BoundError for numbers that a statement cannot have.
"""
