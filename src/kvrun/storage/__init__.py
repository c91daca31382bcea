"""A workspace's Storage: a local folder, S3 and the like, through obstore."""

from kvrun.storage.errors import ObjectExistsError, ObjectMissingError, StorageError
from kvrun.storage.objectlock import hold_objects
from kvrun.storage.store import MAX_OBJECT_BYTES, Patience, Storage, StoredObject, open_storage

__all__ = [
    "MAX_OBJECT_BYTES",
    "ObjectExistsError",
    "ObjectMissingError",
    "Patience",
    "Storage",
    "StorageError",
    "StoredObject",
    "hold_objects",
    "open_storage",
]
