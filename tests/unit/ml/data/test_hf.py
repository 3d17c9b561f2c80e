"""Data sets saved by Hugging Face's own library, read without it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ml.data import get_classes, open_dataset
from ml.errors import DataError

# In a process of its own: the library changes a process that imports it, and looks for a network unless told not to.
_WRITE = """
import sys
from pathlib import Path
import numpy as np
from datasets import ClassLabel, Dataset, DatasetDict, Features, Image, Value
from PIL import Image as Pillow

out = Path(sys.argv[1])
features = Features({"image": Image(), "label": ClassLabel(names=["cat", "dog", "eel"]), "id": Value("string")})

def make(count):
    images = [Pillow.fromarray(np.full((4, 5, 3), 10 * i, np.uint8)) for i in range(count)]
    rows = {"image": images, "label": [i % 3 for i in range(count)], "id": [str(i) for i in range(count)]}
    return Dataset.from_dict(rows, features=features)

DatasetDict({"train": make(9), "test": make(4)}).save_to_disk(out / "dict", num_shards={"train": 2, "test": 1})
make(10).select([9, 8, 7, 6, 5, 4, 3, 2, 1, 0]).save_to_disk(out / "one")
numbers = {"a": [0.5, 1.5, 2.5, 3.5], "b": [1, 2, 3, 4], "y": ["no", "yes", "no", "yes"]}
Dataset.from_dict(numbers).save_to_disk(out / "numbers")
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("hf")
    offline = {"HF_HOME": str(out / "home"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    quiet = {"HF_DATASETS_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    done = subprocess.run(
        [sys.executable, "-c", _WRITE, str(out)], env={**os.environ, **offline, **quiet}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return out


def refuse(data: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        open_dataset(data)


def test_a_dict_of_data_sets_has_splits_classes_and_images(saved: Path) -> None:
    data = {"format": "hf", "path": str(saved / "dict")}
    train, test = open_dataset(data)
    assert (train.classes, train.shape, len(train), len(test)) == (("cat", "dog", "eel"), (3, 4, 5), 9, 4)
    assert train.x[:, 1, 2, 3].tolist() == [10 * i for i in range(9)]
    assert train.y.tolist() == [0, 1, 2] * 3
    assert get_classes(data) == ("cat", "dog", "eel")


def test_a_single_data_set_keeps_its_order_and_has_some_held_out(saved: Path) -> None:
    train, test = open_dataset({"format": "hf", "path": str(saved / "one")})
    assert (len(train), test.count_classes().tolist()) == (7, [1, 1, 1])
    assert (np.diff(train.x[:, 0, 0, 0].astype(int)) < 0).all()
    for part in (train, test):
        assert (part.x[:, 0, 0, 0] // 10 % 3).tolist() == part.y.tolist()


def test_columns_of_numbers_are_features(saved: Path) -> None:
    data = {"format": "hf", "path": str(saved / "numbers"), "columns": {"label": "y"}}
    train, test = open_dataset(data)
    assert (train.classes, train.shape) == (("no", "yes"), (2, 1, 1))
    both = np.concatenate([train.x, test.x]).reshape(-1, 2)
    assert sorted(both.tolist()) == [[0.5, 1], [1.5, 2], [2.5, 3], [3.5, 4]]
    refuse(data | {"columns": {}}, "numbers: expected a column 'label', or the name of another in data.columns.label: ")


def test_the_library_itself_is_not_needed(saved: Path) -> None:
    program = (
        "import sys; sys.modules |= dict.fromkeys(('datasets', 'torch', 'pandas')); "  # importing one is an error
        "from ml.data import open_dataset; "
        f"print(len(open_dataset({{'format': 'hf', 'path': {str(saved / 'dict')!r}}})[0]))"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "9"


# ---- broken directories, small ones by hand


def save(path: Path, columns: dict[str, Any] | None = None) -> dict[str, Any]:
    path.mkdir()
    table = pa.table(columns or {"a": [1.0, 2.0, 3.0, 4.0], "label": [0, 1, 0, 1]})
    with pa.ipc.new_stream(str(path / "data-00000-of-00001.arrow"), table.schema) as writer:
        writer.write_table(table)
    (path / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
    return {"format": "hf", "path": str(path)}


@pytest.mark.parametrize("kept", [0, 100, 0.9])
def test_a_truncated_stream_names_itself(tmp_path: Path, kept: float) -> None:
    data = save(tmp_path / "a")
    path = tmp_path / "a/data-00000-of-00001.arrow"
    whole = path.read_bytes()
    path.write_bytes(whole[: int(kept * len(whole)) if kept < 1 else int(kept)])
    refuse(data, f"{path}: not a readable Arrow stream")


def test_offsets_that_point_outside_are_refused(tmp_path: Path) -> None:
    data = save(tmp_path / "a", {"image": pa.array([b"12345678"] * 3), "label": [0, 1, 0]})
    path = tmp_path / "a/data-00000-of-00001.arrow"
    whole = path.read_bytes()
    offsets = np.array([0, 8, 16, 24], np.int32).tobytes()
    assert whole.count(offsets) == 1
    path.write_bytes(whole.replace(offsets, np.array([0, 1 << 30, 16, 24], np.int32).tobytes()))
    refuse(data, f"{path}: not a readable Arrow stream")


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("state.json", "{", "state.json: expected JSON: "),
        ("state.json", "[]", "state.json: expected a JSON object, got list"),
        ("state.json", "{}", "state.json: _data_files: expected a list of file names, got None"),
        ("state.json", '{"_data_files": []}', "state.json: _data_files: expected at least one file, got none"),
        (
            "state.json",
            '{"_data_files": [{"filename": "../../x.arrow"}]}',
            "_data_files: expected a list of file names",
        ),
        ("state.json", '{"_data_files": [{"filename": "gone.arrow"}]}', "gone.arrow: no such file"),
        ("dataset_dict.json", '{"splits": ["train", "../x"]}', "dataset_dict.json: splits: expected a list of names"),
        ("dataset_dict.json", '{"splits": ["train"]}', "train/state.json: no such file"),
    ],
)
def test_a_broken_directory_names_the_file(tmp_path: Path, file: str, content: str, message: str) -> None:
    data = save(tmp_path / "a")
    (tmp_path / "a" / file).write_text(content)
    refuse(data, message)


def test_another_directory_is_said(tmp_path: Path) -> None:
    refuse({"format": "hf", "path": str(tmp_path)}, f"{tmp_path}: expected a directory of save_to_disk")
