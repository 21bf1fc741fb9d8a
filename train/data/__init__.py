"""Data modules, by the short names that the command line takes."""

from train.data.folder import ImageFolderData
from train.data.shards import WebDatasetData

__all__ = ["ImageFolderData", "WebDatasetData"]
