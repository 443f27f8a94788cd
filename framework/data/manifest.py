"""A store's manifest as JSON text, and back."""

import json
from dataclasses import asdict

from framework.contracts import Field, Manifest
from framework.errors import DataError

SCHEMA = 1


def to_json(manifest: Manifest) -> str:
    return json.dumps(asdict(manifest), ensure_ascii=False)


def from_json(path: str, text: str | bytes) -> Manifest:
    """Raises DataError D104 where the text is no manifest, or one of a later schema."""
    try:
        data = json.loads(text)
        schema = int(data.get("schema", SCHEMA))
        if schema > SCHEMA:
            what = f"written with schema {schema}, this version reads up to {SCHEMA}"
            raise DataError(104, path, what, "update paceline or pack it again")
        fields = {name: Field(f["dtype"], tuple(f["shape"]), f["encoding"]) for name, f in data.pop("fields").items()}
        manifest = Manifest(fields=fields, **data)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(104, path, f"its manifest is damaged ({error})", "pack it again") from error
    return manifest
