"""An example of a method: FedAvg whose clients are held back on their way from the common model."""
