"""The user's own photos, one folder per class."""

import warnings
from pathlib import Path
from typing import Any, ClassVar, Literal

from pytorch_lightning.utilities.rank_zero import rank_zero_info
from torchvision.transforms import v2

from datamodules.base import Split
from datamodules.image_files import ImageFiles, OnError, collate_files
from datamodules.images import ImageDataModule
from datamodules.photo_folders import class_folders, find_photos, find_splits, list_classes
from datamodules.splits import SPLIT_NAMES, check_fraction, stratified_split
from datamodules.transforms import Augment


class ImageFolderDataModule(ImageDataModule):
    """Photos in ROOT/<class>/, or in ROOT/train/<class>/ with ROOT/val and ROOT/test.

    A split that has no folder is taken off the training images, stratified and the same in every run. The
    classes are those of the training images, sorted by name. Validation images are resized (shorter side) and
    cropped at the centre; training images get a random crop, unless augment is none.

    Args:
        root: The folder of photos.
        val_fraction: Share of the training images that becomes val where there is no folder val (or valid,
            validation).
        test_fraction: The same for test; 0: the val images are the test images too, with a warning.
        on_error: A photo that can't be read ends the run (error) or is left out, counted and told (skip).
        predict_dir: Photos to predict: a folder, searched at any depth, or one file. None: the test images.
        image_size: Height and width of the images that the net sees.
        in_channels: 3, or 1 to make all images grey.
        mean: Per channel, of images in 0 to 1. None: ImageNet's.
        std: As mean.
        augment: See ImageDataModule; the crop also changes size and shape.
        crop_scale: The smallest share of a photo's area that a training crop may keep.
        kwargs: Loader options and random_erasing.

    Raises:
        ValueError: No photos where they are expected, or an option is out of range.
    """

    reads_files: ClassVar[bool] = True

    def __init__(
        self,
        root: str,
        *,
        val_fraction: float = 0.15,
        test_fraction: float = 0.15,
        on_error: OnError = "error",
        predict_dir: str | None = None,
        image_size: int = 224,
        in_channels: Literal[1, 3] = 3,
        mean: list[float] | None = None,
        std: list[float] | None = None,
        augment: Augment = "crop_flip",
        crop_scale: float = 0.25,
        **kwargs: Any,
    ) -> None:
        self.folders = find_splits(Path(root))
        super().__init__(
            class_names=class_folders(self.folders["train"]),
            image_size=image_size,
            in_channels=in_channels,
            statistics=(
                [0.485, 0.456, 0.406] if mean is None else mean,
                [0.229, 0.224, 0.225] if std is None else std,
            ),
            augment=augment,
            **kwargs,
        )
        self.fractions: dict[Split, float] = {
            "val": check_fraction("val_fraction", val_fraction),
            "test": check_fraction("test_fraction", test_fraction, zero=True),
        }
        if val_fraction + test_fraction >= 1:
            raise ValueError(f"val_fraction ({val_fraction}) + test_fraction ({test_fraction}) must be below 1")
        if not 0 < crop_scale <= 1:
            raise ValueError(f"crop_scale ({crop_scale}) must be above 0 and at most 1")
        if on_error not in ("error", "skip"):
            raise ValueError(f"on_error ({on_error!r}) must be 'error' or 'skip'")
        if predict_dir is not None and not Path(predict_dir).exists():
            raise ValueError(f"predict_dir ({predict_dir}) does not exist")
        self.on_error, self.predict_dir, self.crop_scale = on_error, predict_dir, crop_scale
        self.collate_fn = collate_files

    def setup(self, stage: str | None = None) -> None:
        """Lists and splits the files, the same way for every stage and on every rank.

        Raises:
            ValueError: A class has no photo, a folder has an unknown class, a split is empty.
        """
        needs_splits = stage != "predict" or self.predict_dir is None
        if needs_splits and not self.datasets.keys() & SPLIT_NAMES.keys():
            for split, (paths, labels) in self.list_splits().items():
                self.datasets[split] = self.make_dataset(split, paths, labels)
        if stage in ("predict", None) and "predict" not in self.datasets:
            if self.predict_dir is None:
                test = self.datasets["test"]
                assert isinstance(test, ImageFiles)
                self.predict_names = test.paths
            else:
                self.predict_names = find_photos(Path(self.predict_dir))
            indices = list(range(len(self.predict_names)))
            self.datasets["predict"] = self.make_dataset("predict", self.predict_names, indices)

    def list_splits(self) -> dict[Split, tuple[list[str], list[int]]]:
        """Paths and labels of train, val and test."""
        splits = {
            split: list_classes(folder, self.class_names, complete=split == "train")
            for split, folder in self.folders.items()
        }
        fractions = {split: share for split, share in self.fractions.items() if split not in splits and share}
        paths, labels = splits["train"]
        shares = [1 - sum(fractions.values()), *fractions.values()]
        names: list[Split] = ["train", *fractions]
        parts = stratified_split(labels, shares, self.split_seed)
        for name, part in zip(names, parts, strict=True):
            splits[name] = ([paths[index] for index in part], [labels[index] for index in part])
            if not part:
                raise ValueError(
                    f"{name}_fraction ({self.fractions[name]}) leaves no {name} photo of the {len(paths)} in "
                    f"{self.folders['train']}: raise it"
                )
        if "test" not in splits:
            warnings.warn("test_fraction is 0: test uses the val images, and will look too good", stacklevel=2)
            splits["test"] = splits["val"]
        sizes = ", ".join(f"{len(splits[name][0])} {name}" for name in SPLIT_NAMES)
        taken = f" ({' and '.join(fractions)} taken off the training photos)" if fractions else ""
        rank_zero_info(f"photos: {sizes}{taken}; {self.num_classes} classes")
        return splits

    def make_dataset(self, split: Split, paths: list[str], labels: list[int]) -> ImageFiles:
        """The dataset of one split, with the training transform for train."""
        size = self.image_size
        train = split == "train"
        resize: v2.Transform
        if train and self.augment != "none":
            resize = v2.RandomResizedCrop(size, scale=(self.crop_scale, 1.0), antialias=True)
        else:
            resize = v2.Compose([v2.Resize(size, antialias=True), v2.CenterCrop(size)])
        return ImageFiles(
            paths,
            labels,
            channels=self.in_channels,
            min_side=2 * size,
            resize=resize,
            transform=self.train_transform(max_shift=0) if train else self.eval_transform(),
            on_error=self.on_error,
        )

    def plain(self, split: Split) -> ImageFiles:
        """As `ImageDataModule.plain`: training photos are cropped in the middle."""
        dataset = self.datasets[split]
        assert isinstance(dataset, ImageFiles)
        return self.make_dataset("val", dataset.paths, dataset.labels.tolist())

    def skipped(self) -> list[str]:
        """Paths of the photos left out so far on this rank, sorted."""
        files = (dataset for dataset in self.datasets.values() if isinstance(dataset, ImageFiles))
        return sorted({path for dataset in files for path in dataset.skipped()})

    def teardown(self, stage: str) -> None:
        """Tells how many photos were left out."""
        skipped = self.skipped()
        if skipped:
            more = ", ..." if len(skipped) > 10 else ""
            warnings.warn(
                f"{len(skipped)} unreadable photos were left out: {', '.join(skipped[:10])}{more}",
                stacklevel=2,
            )
