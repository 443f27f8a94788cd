"""``data=folder``: read image files in place, one subfolder per class."""

from framework.contracts.data import SourceContext
from framework.data.source import StoreSource
from framework.store.folder_store import FolderStore


def folder_source(
    path: str, follow_links: str | None = None, *, context: SourceContext
) -> StoreSource:
    """Return a source of the images in a folder. Each of its subfolders is a class.

    ``follow_links`` is the folder under which symbolic links are followed. None: skip links.
    """
    return StoreSource(FolderStore(path, follow_links), context)
