"""Trained runs behind HTTP: an API, and a page to try them on."""

from qknorm.serving.app import create_app
from qknorm.serving.limits import Limits
from qknorm.serving.served import Served, load_served

__all__ = ["Limits", "Served", "create_app", "load_served"]
