"""What a field means and what may stand in it: said once, for schema, page and errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from pydantic_core import PydanticCustomError

if TYPE_CHECKING:
    from pydantic import GetJsonSchemaHandler
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import CoreSchema

REFUSED = "refused"
HIDDEN = "hidden"


class Meaning(msgspec.Struct, frozen=True):
    """``allowed`` completes the sentence "expected ..."; ``says`` is what the value does."""

    says: str
    allowed: str

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        described = handler(schema)
        described["description"] = f"{self.says} Expected: {self.allowed}."
        return described


def refusal(allowed: str, field: str = "") -> PydanticCustomError:
    """To raise where only the parser of a value knows what is wrong with it.

    ``field`` is a path below the value, for what only shows when several fields are compared.
    """
    return PydanticCustomError(REFUSED, "{allowed}", {"allowed": allowed, "field": field})


def hidden_refusal(allowed: str) -> PydanticCustomError:
    """The same for a value that must not stand in any message."""
    return PydanticCustomError(HIDDEN, "{allowed}", {"allowed": allowed, "field": ""})
