"""Local training: batches, optimiser steps and their limits, and what a model is measured by."""
