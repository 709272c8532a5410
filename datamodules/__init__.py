"""Datamodules: one file per kind of data source; ``--data CLASS`` picks one by class name."""

from datamodules.base import BaseDataModule
from datamodules.cifar10 import CIFAR10DataModule
from datamodules.corpus import CorpusDataModule
from datamodules.digits import DigitsDataModule
from datamodules.fashion_mnist import FashionMNISTDataModule
from datamodules.hugging_face import HuggingFaceDataModule
from datamodules.image_folder import ImageFolderDataModule
from datamodules.images import ImageDataModule
from datamodules.labelled_texts import LabelledTextDataModule
from datamodules.sentiment import SentimentDataModule
from datamodules.text_file import TextFileDataModule
from datamodules.texts import TextDataModule

__all__ = [
    "BaseDataModule",
    "CIFAR10DataModule",
    "CorpusDataModule",
    "DigitsDataModule",
    "FashionMNISTDataModule",
    "HuggingFaceDataModule",
    "ImageDataModule",
    "ImageFolderDataModule",
    "LabelledTextDataModule",
    "SentimentDataModule",
    "TextDataModule",
    "TextFileDataModule",
]
