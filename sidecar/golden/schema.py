"""The JSON schema of golden files, made from the models, for editors and for whoever makes such files by program.

Nothing is checked with it here: the models do that, with better sentences.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sidecar.golden.files import GoldenFile, PromptSet
from sidecar.warmup.schema import DIALECT

#: Where the schema lies in the package; a test compares it with what is made here.
SHIPPED = Path(__file__).with_name("golden.schema.json")


def golden_schema() -> dict[str, Any]:
    """Make the schema: a recording, or prompts that are yet to be recorded."""
    recording, prompts = (model.model_json_schema(ref_template="#/$defs/{model}") for model in (GoldenFile, PromptSet))
    definitions = {**prompts.pop("$defs"), **recording.pop("$defs")}
    return {
        "$schema": DIALECT,
        "title": "Golden file",
        "if": {"required": ["recorded"]},
        "then": recording,
        "else": prompts,
        "$defs": definitions,
    }


def schema_text() -> str:
    """Write the schema as the shipped file holds it."""
    return json.dumps(golden_schema(), indent=2, ensure_ascii=False) + "\n"
