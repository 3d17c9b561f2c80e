"""Texts as the model takes them: `hf-lora-prepare DIRECTORY` makes up sentences, trains a tokeniser on them, and writes
for each site a table of token ids to train on, and one of sentences that it has not seen.
"""

from __future__ import annotations

import argparse
import csv
import random
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

LENGTH = 16  # tokens of a row
VOCABULARY = 256
CLASSES = ("cardiology", "orthopaedics", "dermatology")

_WORDS = {
    "cardiology": ["heart", "rhythm", "valve", "murmur", "artery", "pulse", "chest", "pressure", "atrium", "stent"],
    "orthopaedics": ["bone", "fracture", "joint", "knee", "hip", "tendon", "ligament", "cast", "shoulder", "spine"],
    "dermatology": ["skin", "rash", "lesion", "mole", "itching", "eczema", "blister", "scar", "pigment", "pore"],
}
_FRAMES = (
    "the patient reports {} and {} since monday",
    "examination of the {} shows a {} without change",
    "{} with signs of {} on the left side",
    "we recommend control of the {} and the {} in two weeks",
)

Rows = list[tuple[str, str]]


def make_sentences(num: int, shares: Sequence[float], seed: int) -> Rows:
    """So many sentences with the class that each is about, the classes in these shares."""
    draw = random.Random(seed)
    rows = []
    for name in draw.choices(CLASSES, shares, k=num):
        frame = draw.choice(_FRAMES)
        rows.append((frame.format(*draw.sample(_WORDS[name], 2)), name))
    return rows


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Whole words; 0 is padding, 1 is what it does not know."""
    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(
        texts, trainers.WordLevelTrainer(vocab_size=VOCABULARY, special_tokens=["[PAD]", "[UNK]"])
    )
    return tokenizer


def write_table(path: Path, rows: Rows, tokenizer: Tokenizer) -> None:
    """A row of token ids and the label for each sentence."""
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow([*(f"t{i}" for i in range(LENGTH)), "label"])
        for text, label in rows:
            ids = tokenizer.encode(text).ids[:LENGTH]
            table.writerow([*ids, *[0] * (LENGTH - len(ids)), label])


def prepare(directory: Path, num_sites: int = 3, num: int = 240) -> None:
    """Each site sees mostly one of the classes."""
    sites = []
    for site in range(num_sites):
        shares = [4.0 if i == site % len(CLASSES) else 1.0 for i in range(len(CLASSES))]
        sites.append((make_sentences(num, shares, site), make_sentences(num // 4, shares, 1000 + site)))
    tokenizer = train_tokenizer(text for train, _ in sites for text, _ in train)
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    for site, (train, unseen) in enumerate(sites):
        place = directory / f"site{site}"
        place.mkdir(exist_ok=True)
        write_table(place / "train.csv", train, tokenizer)
        write_table(place / "unseen.csv", unseen, tokenizer)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--sites", type=int, default=3)
    given = parser.parse_args()
    prepare(given.directory, given.sites)


if __name__ == "__main__":
    main()
