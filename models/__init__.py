"""The tasks: LightningModules that own the loss, the metrics and the optimizer of a net.

Every task is imported here because a checkpoint is only reloaded when the class it names has been imported.
"""

from models.base import Task
from models.diffusion_model import DiffusionModel
from models.language_model import LanguageModel
from models.text_classifier import TextClassifier
from models.vision_classifier import VisionClassifier

__all__ = ["DiffusionModel", "LanguageModel", "Task", "TextClassifier", "VisionClassifier"]
