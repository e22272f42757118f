"""What requests and answers hold, as the API's description shows it."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

#: What a body may be.
FORM = "application/x-www-form-urlencoded"
TYPES = ("application/json", FORM)

Decoding = Annotated[
    str | None,
    Field(description="a decoder of docs/decoders.md; by default as `paradec translate`"),
]
Beam = Annotated[int | None, Field(ge=1, description="beam search of this width, not greedy")]
Format = Annotated[
    Literal["text", "html", "markdown"],
    Field(description="of the text; its markup stays byte for byte"),
]
Tokens = Annotated[int, Field(description="tokens of predictions, `</s>` counted")]


class TranslateRequest(BaseModel):
    """LibreTranslate's request, and more."""

    q: Annotated[str | list[str], Field(description="the text, or texts")]
    source: Annotated[str, Field(description="its language, or `auto`")] = "auto"
    target: Annotated[str, Field(description="the language of the translation")]
    format: Format = "text"
    alternatives: Annotated[
        int, Field(ge=0, description="so many next best translations; they make it a beam search")
    ] = 0
    api_key: Annotated[str, Field(description="if the server asks for one")] = ""
    decoding: Decoding = None
    beam: Beam = None
    prediction: Annotated[
        str | list[str] | None,
        Field(description="for each text an earlier translation of it or of a similar one"),
    ] = None


class DetectRequest(BaseModel):
    """LibreTranslate's request."""

    q: Annotated[str, Field(description="the text")]
    api_key: Annotated[str, Field(description="if the server asks for one")] = ""


class TranslationRequest(BaseModel):
    """A text for `/v1/translations`."""

    text: Annotated[str, Field(description="of any length")]
    source_language: Annotated[str, Field(description="its language, or `auto`")] = "auto"
    target_language: Annotated[str, Field(description="the language of the translation")]
    model: Annotated[str | None, Field(description="as `/health` names it; not needed")] = None
    stream: Annotated[bool, Field(description="answer by server-sent events")] = False
    format: Format = "text"
    decoding: Decoding = None
    beam: Beam = None
    prediction: Annotated[
        str | None, Field(description="an earlier translation of it or of a similar text")
    ] = None
    passes: Annotated[
        bool, Field(description="with `stream`: the decoder's passes, too, as of a trace")
    ] = False


class Detected(BaseModel):
    """A language."""

    language: str
    confidence: Annotated[float, Field(description="0 to 100")]


class TranslateAnswer(BaseModel):
    """LibreTranslate's answer, and more; of several texts, lists."""

    translatedText: str | list[str]
    alternatives: list[str] | list[list[str]] | None = None
    detectedLanguage: Detected | list[Detected] | None = None
    notes: Annotated[
        list[str], Field(description="what could not be placed by what it stands beside")
    ]
    passes: Annotated[int, Field(description="of the decoder, summed over sentences")]
    tokens: Annotated[int, Field(description="of the outputs")]
    accepted_prediction_tokens: Tokens
    rejected_prediction_tokens: Tokens
    milliseconds: Annotated[float, Field(description="from the first batch to the end of the last")]


class Usage(BaseModel):
    """What a translation has cost."""

    completion_tokens: Annotated[int, Field(description="of the outputs")]
    accepted_prediction_tokens: Tokens
    rejected_prediction_tokens: Tokens
    passes: Annotated[int, Field(description="of the decoder, summed over sentences")]
    milliseconds: Annotated[float, Field(description="from the first batch to the end of the last")]


class TranslationAnswer(BaseModel):
    """The answer of `/v1/translations`."""

    id: str
    object: str = "translation"
    created: int
    model: str
    text: str
    notes: list[str]
    usage: Usage


class Language(BaseModel):
    """A source language."""

    code: str
    name: str
    targets: list[str]


class Health(BaseModel):
    """How the server is."""

    status: str = "ok"
    models: list[str]
    waiting: Annotated[int, Field(description="sentences that wait, in this process")]
    decoders: Annotated[dict[str, list[str]], Field(description="lossless ones, by model")]
    needs_key: bool
    version: str


class Error(BaseModel):
    """Why there is no answer."""

    error: str


#: The statuses of errors of every route that translates.
ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": Error, "description": "a value is wrong; the text names it"},
    403: {"model": Error, "description": "the key is wrong, or the origin is not allowed"},
    413: {"model": Error, "description": "the text or the body is too long"},
    500: {"model": Error, "description": "a fault of the server"},
    503: {"model": Error, "description": "too much waits; `Retry-After` says for how long"},
    504: {"model": Error, "description": "it took too long"},
}


def accepts(model: type[BaseModel], known: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the description of a body as JSON or as a form, which a route reads by itself.

    Args:
        model: the body.
        known: what a server allows, by field, in the words of JSON's schemas.
    """
    schema = model.model_json_schema()
    for name, allowed in known.items():
        field = schema["properties"].get(name, {})
        field.get("anyOf", [field])[0].update(allowed)
    return {"requestBody": {"required": True, "content": {t: {"schema": schema} for t in TYPES}}}
