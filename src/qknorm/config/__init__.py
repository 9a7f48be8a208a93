"""Every setting of a run, recipes that hold them, and presets that choose them."""

from qknorm.config.catalogue import Setting, settings
from qknorm.config.changes import Change, changed_settings, recipe_hash
from qknorm.config.files import SplitPaths
from qknorm.config.idle import idle_settings
from qknorm.config.presets import Preset, dev_size, preset
from qknorm.config.recipe_file import dump_recipe, load_recipe, make_recipe
from qknorm.config.reference import reference
from qknorm.config.settings import (
    DataSettings,
    DecodingSettings,
    Recipe,
    SubwordSettings,
    TrainingSettings,
)
from qknorm.model.settings import ModelSettings

__all__ = [
    "Change",
    "DataSettings",
    "DecodingSettings",
    "ModelSettings",
    "Preset",
    "Recipe",
    "Setting",
    "SplitPaths",
    "SubwordSettings",
    "TrainingSettings",
    "changed_settings",
    "dev_size",
    "dump_recipe",
    "idle_settings",
    "load_recipe",
    "make_recipe",
    "preset",
    "recipe_hash",
    "reference",
    "settings",
]
