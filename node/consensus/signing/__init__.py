"""The one door that signs, the keys it has, and the heights that it is silent at after a restored backup."""
