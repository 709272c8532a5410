"""What leaves of each task when it is exported, and how an artifact of it is scored; one file a task."""

import importlib
import pkgutil

from lightning_app.deliverables.base import describe

for _module in pkgutil.iter_modules(__path__, f"{__name__}."):
    importlib.import_module(_module.name)  # it registers its task

__all__ = ["describe"]
