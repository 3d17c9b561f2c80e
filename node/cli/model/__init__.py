"""Commands of a node's model: exported, asked for predictions, and measured."""
