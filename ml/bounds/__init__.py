"""The papers' theorems on convergence, a module for each: what a round does to the loss at most, and when it falls.

Where a statement does not follow from its own proof, the corrected one is computed, and `printed=True` gives the
paper's. All raise BoundError for numbers that a statement cannot have.
"""
