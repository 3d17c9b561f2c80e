"""Records of rounds: what happened in each, a watch over what is learned, and one for rounds that stand still."""
