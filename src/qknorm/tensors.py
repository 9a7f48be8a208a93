"""Tensors and a few words about them in one file: written whole or not at all, and checked when read."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from qknorm.data.text import sync_folder
from qknorm.errors import UserError

_FORMAT = "qknorm-tensors/1"


def save_tensors(path: Path, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    """Write a safetensors file in place of the one there; until it is complete, that one stays.

    ``about`` is kept as JSON in the file's metadata, with a checksum over it and every tensor.
    """
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    words = json.dumps(about, sort_keys=True, allow_nan=True)
    metadata = {"format": _FORMAT, "about": words, "sha256": _digest(tensors, words)}
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        save_file(tensors, temporary, metadata)
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except (OSError, SafetensorError) as error:
        kept = f"; {path} as it was before is intact" if path.exists() else ""
        raise UserError(
            f"{path} could not be written ({error}){kept}. Make room on the disk and try again."
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and words of a file; a UserError where it is not as it was written."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError as error:
        raise UserError(f"{path} does not exist.") from error
    except (OSError, SafetensorError, ValueError) as error:
        raise _damaged(path, error) from error
    if metadata.get("format") != _FORMAT:
        raise UserError(f"{path} was not written by this version of qknorm (no {_FORMAT!r} in it).")
    words = metadata.get("about", "")
    if metadata.get("sha256") != _digest(tensors, words):
        raise UserError(f"{path} was altered since it was written; restore it from a copy, or train again.")
    about: dict[str, Any] = json.loads(words)
    return tensors, about


def read_about(path: Path) -> dict[str, Any]:
    """The words of a file alone, whatever its tensors are."""
    try:
        with safe_open(path, framework="pt") as file:
            about: dict[str, Any] = json.loads((file.metadata() or {})["about"])
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        raise _damaged(path, error) from error
    return about


def _damaged(path: Path, error: Exception) -> UserError:
    return UserError(f"{path} is damaged or cut short ({error}); restore it from a copy, or train again.")


def _digest(tensors: dict[str, Tensor], words: str) -> str:
    digest = hashlib.sha256(words.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"\0{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
