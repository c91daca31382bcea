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
UNGOVERNED_PATHS = frozenset({"/v1/embeddings", "/v1/responses", "/v1/messages"})
"""Paths whose slot llama.cpp chooses: served without the cache, with every slot leased."""

JsonObject = dict[str, object]
_SAMPLING = frozenset(
    [
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
        "stop",
        "stream",
        "stream_options",
        "logprobs",
        "frequency_penalty",
        "presence_penalty",
        "logit_bias",
        "response_format",
        "ignore_eos",
    ]
)
_CHAT = frozenset(
    [
        "messages",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "top_logprobs",
        "reasoning_effort",
        "chat_template_kwargs",
        "add_generation_prompt",
        "functions",
        "function_call",
    ]
)
_RENAMED = {"repetition_penalty": "repeat_penalty"}
_WITHOUT_EFFECT = frozenset(
    [
        "model",
        "user",
        "metadata",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "service_tier",
        "include_reasoning",
        "verbosity",
        "prediction",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "add_special_tokens",
        "stream_interval",
        "cache_salt",
        "kv_transfer_params",
        "max_tokens",
        "max_completion_tokens",
        "n",
    ]
)
_DEFAULTS: dict[str, object] = {
    "echo": False, "suffix": None, "truncate_prompt_tokens": None, "min_tokens": 0,
    "include_stop_str_in_output": False, "length_penalty": 1.0, "stop_token_ids": [],
    "continue_final_message": False, "return_token_ids": False,
    "return_tokens_as_token_ids": False,
}  # fmt: skip


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
    allowed = _SAMPLING | _CHAT if chat else _SAMPLING
    fields: JsonObject = {}
    for name, value in body.items():
        if name in allowed:
            fields[name] = value
        elif name in _RENAMED:
            fields[_RENAMED[name]] = value
        elif name == "prompt" and not chat:
            continue
        elif name not in _WITHOUT_EFFECT and value not in (None, _DEFAULTS.get(name)):
            raise RequestError(
                f"{name!r} is not served by llama.cpp here", param=name, code="unsupported_value"
            )
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


def without_stamps(body: JsonObject) -> JsonObject:
    """A body for llama.cpp's own paths, without what the gateway stamped."""
    return {
        name: value
        for name, value in body.items()
        if name not in ("cache_salt", "kv_transfer_params", "vllm_xargs")
    }


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
