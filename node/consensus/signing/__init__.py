"""The only place that signs, the keys it has, and the heights at which it signs nothing after a restored backup."""
