"""Measures of a classifier on labelled samples, their intervals, and the signs that it has not learned."""
