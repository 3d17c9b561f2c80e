"""MedMNIST's published files (Yang et al., "MedMNIST v2", Scientific Data 10:41, 2023): one .npz for each data set,
with `train_images`, `train_labels`, and the same for `val` and `test`. Images are uint8 [N, S, S] or [N, S, S, 3],
labels [N, 1]. The data set, and so the names of its classes, is known by the file's name: `pathmnist.npz`, or
`pathmnist_64.npz` for larger images.

ChestMNIST has fourteen labels a sample and the 3-D sets have volumes; neither is a task for a classifier of images.
"""

from __future__ import annotations

from functools import partial

from ml.data.part import Part, Parts
from ml.data.readers.npz import NpzFile, find_archive, open_part
from ml.data.source import DataSource
from ml.errors import DataError, suggest

_ORGANS = (
    *("bladder", "femur-left", "femur-right", "heart", "kidney-left", "kidney-right", "liver", "lung-left"),
    *("lung-right", "pancreas", "spleen"),
)
CLASSES: dict[str, tuple[str, ...]] = {
    "pathmnist": (
        *("adipose", "background", "debris", "lymphocytes", "mucus", "smooth muscle", "normal colon mucosa"),
        *("cancer-associated stroma", "colorectal adenocarcinoma epithelium"),
    ),
    "dermamnist": (
        *("actinic keratoses and intraepithelial carcinoma", "basal cell carcinoma", "benign keratosis-like lesions"),
        *("dermatofibroma", "melanoma", "melanocytic nevi", "vascular lesions"),
    ),
    "octmnist": ("choroidal neovascularization", "diabetic macular edema", "drusen", "normal"),
    "pneumoniamnist": ("normal", "pneumonia"),
    "retinamnist": ("0", "1", "2", "3", "4"),
    "breastmnist": ("malignant", "normal, benign"),
    "bloodmnist": (
        *("basophil", "eosinophil", "erythroblast"),
        "immature granulocytes(myelocytes, metamyelocytes and promyelocytes)",
        *("lymphocyte", "monocyte", "neutrophil", "platelet"),
    ),
    "tissuemnist": (
        *("Collecting Duct, Connecting Tubule", "Distal Convoluted Tubule", "Glomerular endothelial cells"),
        *("Interstitial endothelial cells", "Leukocytes", "Podocytes", "Proximal Tubule Segments"),
        "Thick Ascending Limb",
    ),
    "organamnist": _ORGANS,
    "organcmnist": _ORGANS,
    "organsmnist": _ORGANS,
}
_SIZES = ("_64", "_128", "_224")


def open_parts(source: DataSource) -> Parts:
    """Opens the splits train, val and test of a published file."""
    source.refuse_columns()
    path = find_archive(source.get_path())
    name = path.stem
    for size in _SIZES:
        name = name.removesuffix(size)
    if name not in CLASSES:
        raise DataError(f"{path}: expected a file named for its data set, got {path.name!r}: {suggest(name, CLASSES)}")
    file = NpzFile.open(path)
    splits = [array.removesuffix("_images") for array in file.names if array.endswith("_images")]
    if not splits:
        raise DataError(
            f"{path}: expected arrays train_images and train_labels (got {', '.join(file.names) or 'none'})"
        )
    return Parts(str(path), {split: partial(_open_part, file, split) for split in splits}, CLASSES[name])


def _open_part(file: NpzFile, split: str) -> Part:
    images = f"{split}_images"
    shape = file.get_shape(images)
    if len(shape) != 3 and not (len(shape) == 4 and shape[3] == 3):
        raise DataError(f"{file.get_place(images)}: expected shape [N, S, S] or [N, S, S, 3], got {list(shape)}")
    return open_part(file, images, f"{split}_labels")
