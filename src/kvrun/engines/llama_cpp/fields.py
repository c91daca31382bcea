"""A request as the gateway sends it, and as llama.cpp gets it. Pure.

Only fields on these lists reach llama.cpp: it takes the slot, the reuse and the adapters of a
request from its body too.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from kvrun.claims.claim import CLAIM_PARAMETER, TRACE_PARAMETER
from kvrun.errors import KvrunError

CHAT_PATH = "/v1/chat/completions"
COMPLETIONS_PATH = "/v1/completions"
JsonObject = dict[str, object]


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ANY = _names("temperature top_p top_k stream")
_PENALTIES = _names("min_p seed stop frequency_penalty presence_penalty repeat_penalty logit_bias")
_TOOLS = _names("tools tool_choice parallel_tool_calls chat_template_kwargs")
_SAMPLING = _ANY | _PENALTIES | _names("stream_options logprobs response_format ignore_eos")
_CHAT = _TOOLS | _names(
    "messages top_logprobs reasoning_effort add_generation_prompt functions function_call"
)
_PASSED = {
    "/v1/embeddings": _names("input encoding_format"),
    "/v1/responses": _ANY | _PENALTIES | _TOOLS
    | _names("input instructions max_output_tokens reasoning ignore_eos"),
    "/v1/messages": _ANY | _TOOLS - {"parallel_tool_calls"}
    | _names("messages system max_tokens stop_sequences thinking"),
}  # fmt: skip
UNGOVERNED_PATHS = frozenset(_PASSED)
"""Paths whose slot llama.cpp chooses: served without the cache, with every slot leased."""

_RENAMED = {"repetition_penalty": "repeat_penalty"}
_WITHOUT_EFFECT = _names(
    """
    model user metadata safety_identifier prompt_cache_key prompt_cache_retention service_tier
    include_reasoning verbosity prediction skip_special_tokens spaces_between_special_tokens
    add_special_tokens stream_interval stream_options cache_salt kv_transfer_params
    max_tokens max_completion_tokens n
    """
)
"""What is left out: it changes no token of the answer, or is read here."""

_DEFAULTS: dict[str, tuple[object, ...]] = {
    "echo": (False,), "suffix": (), "truncate_prompt_tokens": (), "min_tokens": (0,),
    "include_stop_str_in_output": (False,), "length_penalty": (1.0,), "stop_token_ids": ([],),
    "continue_final_message": (False,), "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,), "store": (False,), "include": ([],),
    "truncation": ("disabled",), "text": ({}, {"format": {"type": "text"}}), "top_logprobs": (0,),
    "vllm_xargs": ({},),
}  # fmt: skip
"""Values of fields without a counterpart in llama.cpp that ask for what it does anyway."""


class RequestError(KvrunError):
    """A request that this engine cannot serve; ``code`` and ``param`` as OpenAI's errors have."""

    status = 400

    def __init__(self, message: str, *, param: str | None = None, code: str = "invalid_value"):
        super().__init__(message)
        self.param = param
        self.code = code


@dataclass(frozen=True, slots=True)
class Asked:
    """A generation: what the gateway stamped, what was asked, and the fields for llama.cpp.

    ``prompt`` is a completion's text or tokens; None for a chat.
    """

    claim: str
    salt: str
    traceparent: str
    fields: JsonObject
    prompt: str | list[int] | None
    max_tokens: int | None
    stream: bool


def parse_body(raw: bytes) -> JsonObject:
    """The JSON object in a body. Raises RequestError."""
    try:
        return msgspec.json.decode(raw, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(f"the body is not a JSON object: {error}", code="invalid_json") from None


def read_request(path: str, body: JsonObject) -> Asked:
    """What a chat or completion asks for. Raises RequestError that names the field."""
    chat = path == CHAT_PATH
    fields = _allowed(body, _SAMPLING | _CHAT if chat else _SAMPLING | {"prompt"})
    fields.pop("prompt", None)
    if body.get("n") not in (None, 1):
        raise RequestError("n must be 1 with llama.cpp", param="n", code="unsupported_value")
    if fields.get("response_format") is None:
        fields.pop("response_format", None)
    claim, salt, traceparent = stamps_of(body)
    return Asked(
        claim=claim,
        salt=salt,
        traceparent=traceparent,
        fields=fields,
        prompt=None if chat else _prompt(body.get("prompt")),
        max_tokens=_limit(body, chat),
        stream=body.get("stream") is True,
    )


def stamps_of(body: JsonObject) -> tuple[str, str, str]:
    """What the gateway stamped: claim, salt and traceparent, each empty where it is not there."""
    stamped = body.get("kv_transfer_params")
    stamps = stamped if isinstance(stamped, dict) else {}
    return (
        _text(stamps.get(CLAIM_PARAMETER)),
        _text(body.get("cache_salt")),
        _text(stamps.get(TRACE_PARAMETER)),
    )


def passed_fields(path: str, body: JsonObject) -> JsonObject:
    """The body for one of :data:`UNGOVERNED_PATHS`. Raises RequestError that names the field."""
    return _allowed(body, _PASSED[path])


def check_window(tokens: int, max_tokens: int | None, window: int) -> int:
    """How many tokens the answer may have. Raises RequestError that names both numbers."""
    if tokens >= window:
        raise RequestError(
            f"the prompt has {tokens} tokens, and this deployment's context window is {window}"
            " tokens for prompt and answer together",
            param="prompt",
            code="context_length_exceeded",
        )
    if max_tokens is not None and tokens + max_tokens > window:
        raise RequestError(
            f"the prompt has {tokens} tokens and the answer may have {max_tokens}:"
            f" {tokens + max_tokens} together, and this deployment's context window is {window}",
            param="max_tokens",
            code="context_length_exceeded",
        )
    return window - tokens if max_tokens is None else max_tokens


def _allowed(body: JsonObject, allowed: frozenset[str]) -> JsonObject:
    """The fields that llama.cpp gets, under its names. Raises RequestError for one it does not."""
    fields: JsonObject = {}
    for name, value in body.items():
        known = _RENAMED.get(name, name)
        if known in allowed:
            fields[known] = value
        elif name not in _WITHOUT_EFFECT and not _is_default(name, value):
            raise RequestError(
                f"{name!r} is not served by llama.cpp here", param=name, code="unsupported_value"
            )
    return fields


def _is_default(name: str, value: object) -> bool:
    return value is None or any(value == default for default in _DEFAULTS.get(name, ()))


def _prompt(value: object) -> str | list[int]:
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        value = value[0]
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(type(item) is int for item in value):
        if all(0 <= item < 1 << 31 for item in value):
            return list(value)
        raise RequestError("prompt holds a number that is no token", param="prompt")
    raise RequestError("prompt must be one text or one list of tokens", param="prompt")


def _limit(body: JsonObject, chat: bool) -> int | None:
    value = body.get("max_completion_tokens") if chat else None
    value = body.get("max_tokens") if value is None else value
    if value is None:
        return None if chat else 16
    if type(value) is not int or value < 1:
        raise RequestError("max_tokens must be a whole number from 1", param="max_tokens")
    return value


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
