"""What a client may put in a body, and what the gateway writes into it."""

import msgspec

from kvrun.claims.claim import CLAIM_PARAMETER, MAX_USES, TRACE_PARAMETER
from kvrun.gateway.content import (
    check_content,
    check_embedding_input,
    check_messages,
    check_response_input,
    check_tools,
    count_prompts,
)
from kvrun.gateway.errors import GatewayError
from kvrun.gateway.jsonbody import JsonObject
from kvrun.gateway.routes import Api, Route

MAX_CHOICES = 128


class CheckedBody(msgspec.Struct, frozen=True):
    """A body that passed, without what the engine must not get.

    ``uses`` is the number of engine requests it makes; ``stream`` whether the answer streams.
    """

    fields: JsonObject
    uses: int
    stream: bool


def check_body(route: Route, body: JsonObject) -> CheckedBody:
    """Allow-list the body of a request. Raises GatewayError 400 that names the field."""
    if not body.keys() <= route.fields:
        raise _refused_field(next(name for name in body if name not in route.fields))
    stream = body.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise GatewayError("stream must be true or false", param="stream")
    _check_xargs(body.get("vllm_xargs"))
    _check_template_kwargs(body.get("chat_template_kwargs"))
    fields = dict(body)
    prompts = 1
    if route.api is Api.CHAT:
        _check_chat(fields)
    elif route.api is Api.COMPLETIONS:
        prompts = count_prompts(body.get("prompt"))
        _drop_unless(fields, "best_of", (None, 1))
    elif route.api is Api.RESPONSES:
        _check_responses(fields)
    elif route.api is Api.MESSAGES:
        check_messages(body.get("messages"))
        check_content(body.get("system"), "system")
        check_tools(body.get("tools"), ("custom",), "custom")
    else:
        check_embedding_input(body.get("input"))
    uses = prompts * _choices(body.get("n"))
    if uses > MAX_USES:
        raise GatewayError(
            f"n times the number of prompts is {uses}; at most {MAX_USES} are allowed",
            param="n",
        )
    return CheckedBody(fields, uses, stream is True)


def stamp_body(
    fields: JsonObject, *, salt: str, claim: str | None, traceparent: str = ""
) -> JsonObject:
    """The body for the engine: salted, and with the claim where there is one.

    The daemon learns from ``traceparent``, beside the claim, in which trace the request is.
    """
    stamped = dict(fields)
    stamped["cache_salt"] = salt
    if claim is not None:
        parameters = {CLAIM_PARAMETER: claim}
        if traceparent:
            parameters[TRACE_PARAMETER] = traceparent
        stamped["kv_transfer_params"] = parameters
    return stamped


def _check_chat(fields: JsonObject) -> None:
    check_messages(fields.get("messages"))
    check_tools(fields.get("tools"), ("function", "custom"), "function")
    modalities = fields.get("modalities")
    if modalities is not None and modalities != ["text"]:
        raise GatewayError(
            "modalities must be ['text']: this deployment serves text only",
            param="modalities",
            code="media_not_supported",
        )
    _drop_unless(fields, "store", (None, False), "this deployment keeps no conversations")


def _check_responses(fields: JsonObject) -> None:
    why = "this deployment keeps no conversations; send the whole conversation as input"
    _drop_unless(fields, "store", (None, False), why)
    for name in ("previous_response_id", "conversation", "prompt"):
        _drop_unless(fields, name, (None,), why)
    _drop_unless(fields, "background", (None, False), why)
    fields["store"] = False
    check_response_input(fields.get("input"))
    check_tools(fields.get("tools"), ("function", "custom"), "function")


def _drop_unless(
    fields: JsonObject, name: str, allowed: tuple[object, ...], why: str = "not served here"
) -> None:
    if name not in fields:
        return
    value = fields.pop(name)
    if not any(value is item or (type(value) is type(item) and value == item) for item in allowed):
        choices = " or ".join(_show(item) for item in allowed)
        raise GatewayError(
            f"{name} must be left out or {choices}: {why}", param=name, code="unsupported_value"
        )


def _show(value: object) -> str:
    return {None: "null", False: "false", True: "true"}.get(value, str(value))  # type: ignore[call-overload,no-any-return]


def _choices(value: object) -> int:
    if value is None:
        return 1
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_CHOICES:
        raise GatewayError(f"n must be a whole number from 1 to {MAX_CHOICES}", param="n")
    return value


def _check_xargs(value: object) -> None:
    if value is None:
        return
    if not isinstance(value, dict):
        raise GatewayError("vllm_xargs must be an object", param="vllm_xargs")
    for name in value:
        plain = name.casefold()
        if plain.startswith("kv") or plain in _RESERVED_XARGS:
            raise _governed(f"vllm_xargs.{name[:64]}")


def _check_template_kwargs(value: object) -> None:
    if value is None:
        return
    if not isinstance(value, dict):
        raise GatewayError("chat_template_kwargs must be an object", param="chat_template_kwargs")
    if "chat_template" in value:
        raise GatewayError(
            "unknown field 'chat_template_kwargs.chat_template'",
            param="chat_template_kwargs.chat_template",
            code="unknown_field",
        )


def _refused_field(name: str) -> GatewayError:
    shown = name[:64]
    if name.casefold() in _GOVERNED:
        return _governed(shown)
    if name == "use_beam_search":
        return GatewayError("beam search is not served here", param=name, code="unsupported_value")
    if name in ("prompt_embeds", "audio", "mm_processor_kwargs", "media_io_kwargs"):
        return GatewayError(
            f"{name!r} holds or steers media; this deployment serves text only",
            param=name,
            code="media_not_supported",
        )
    return GatewayError(f"unknown field {shown!r}", param=shown, code="unknown_field")


def _governed(name: str) -> GatewayError:
    return GatewayError(
        f"{name!r} is set by the gateway and may not be set by a client",
        param=name,
        code="governed_field",
    )


_GOVERNED = frozenset(
    {
        "cache_salt",
        "data_parallel_rank",
        "ec_transfer_params",
        "kv_hints",
        "kv_transfer_params",
        "priority",
        "request_id",
        "session_id",
    }
)
_RESERVED_XARGS = frozenset(
    {"cache_salt", "ec_transfer_params", "priority", "request_id", "session_id"}
)
