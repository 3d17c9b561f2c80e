"""Text classification for fednode: LoRA adapters of a frozen transformer."""
