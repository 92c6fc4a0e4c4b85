"""The JSON schema of profile files, made from the models, for editors and for whoever makes profiles by program.

Nothing is checked with it here: the models do that, with better sentences.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sidecar.warmup.inheritance import EXTENDS, WITHOUT
from sidecar.warmup.profiles import Profile

#: Where the schema lies in the package; a test compares it with what is made here.
SHIPPED = Path(__file__).with_name("profile.schema.json")
DIALECT = "https://json-schema.org/draft/2020-12/schema"
_EXTENDS = {
    "type": "string",
    "minLength": 1,
    "description": "The profile that this one is laid over: the name of one beside it or of a shipped one, or a path. "
    "Sections are merged key by key, steps by name; see `without`.",
}
_WITHOUT = {
    "type": "array",
    "items": {"type": "string"},
    "description": "Names of steps of the extended profile that are left out.",
}
_CHANGE = {
    "type": "object",
    "description": "Keys of the extended profile's step of this name that are different here.",
    "required": ["name"],
    "properties": {"name": {"type": "string"}, "kind": False},
}


def profile_schema() -> dict[str, Any]:
    """Make the schema of a profile file, which unlike a whole profile may extend another one."""
    schema = Profile.model_json_schema(by_alias=True)
    properties = schema.pop("properties")
    steps = properties.pop("steps")
    # What is only there to be merged away, and what a whole profile needs and a file may get from another one.
    changed = {key: value for key, value in steps.items() if key != "minItems"}
    changed["items"] = {"anyOf": [steps["items"], _CHANGE]}
    return {
        "$schema": DIALECT,
        **schema,
        "title": "Warm-up profile",
        "properties": {EXTENDS: _EXTENDS, WITHOUT: _WITHOUT, **properties, "steps": changed},
        "required": ["description"],
        "if": {"required": [EXTENDS]},
        "then": {},
        "else": {"required": ["steps"], "properties": {"steps": steps, WITHOUT: False}},
    }


def schema_text() -> str:
    """Write the schema as the shipped file holds it."""
    return json.dumps(profile_schema(), indent=2, ensure_ascii=False) + "\n"
