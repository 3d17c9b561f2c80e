"""Local training: batches, optimiser steps and their limits, and the measures of a model."""
