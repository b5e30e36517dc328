"""Where a model's files are: a directory on this machine, or a repository of the Hugging Face hub, fetched once."""

from __future__ import annotations

from pathlib import Path

from mac_runner.nano.errors import ModelNotFoundError

_PATTERNS = ["*.json", "*.safetensors", "*.jinja"]


def find_model(model_path: str) -> Path:
    """The directory of a model; a name like `Qwen/Qwen2.5-0.5B` is downloaded if it is not a directory here."""
    directory = Path(model_path).expanduser()
    if directory.is_dir():
        return directory
    if model_path.count("/") != 1 or model_path.startswith((".", "/", "~")):
        raise ModelNotFoundError(f"{model_path} is no directory, and no name of a model on the hub either (owner/name)")
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
    except ImportError as error:
        raise ModelNotFoundError(
            f"{model_path} is no directory; to download it: pip install huggingface_hub"
        ) from error
    try:
        return Path(snapshot_download(model_path, allow_patterns=_PATTERNS))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise ModelNotFoundError(f"{model_path} is no directory here, and the hub did not give it: {error}") from error
