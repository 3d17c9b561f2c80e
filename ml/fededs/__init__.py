"""FedEDS's encrypted sets: the encryptor, its stochastic layer, the shared set, and an attack that reconstructs it."""
