"""Records of rounds: what each was like, a watch over what is learned, and one for rounds that stand still."""
