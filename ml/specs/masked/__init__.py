"""Methods whose common model is the mean of members' models that nobody sees."""
