"""Only text: messages, prompts and tools are walked, and media parts refused.

The engine keys its cache of encoded media without a salt, so media of one tenant could be
recognised by another. The walk allows what is known to be text and refuses the rest.
"""

from collections.abc import Iterator

from kvrun.gateway.errors import GatewayError

MAX_PART_DEPTH = 4


def check_messages(value: object, where: str = "messages") -> None:
    """Chat and Messages: a list of messages whose content is text. Raises GatewayError 400."""
    for path, message in _objects(value, where):
        for key, held in message.items():
            # Clients echo the assistant's message back as they got it, "audio": null included.
            if key in _MEDIA and held is not None:
                raise _media(path, key)
        check_content(message.get("content"), f"{path}.content")


def check_response_input(value: object) -> None:
    """Responses: ``input`` as text or a list of items without media or server-held state."""
    if value is None or isinstance(value, str):
        return
    for path, item in _objects(value, "input"):
        kind = item.get("type", "message")
        if not isinstance(kind, str) or kind not in _RESPONSE_ITEMS:
            raise _unsupported(f"{path}.type", kind, _RESPONSE_ITEMS)
        _refuse_media_keys(item, path)
        check_content(item.get("content"), f"{path}.content")
        check_content(item.get("output"), f"{path}.output")
        check_content(item.get("summary"), f"{path}.summary")


def check_content(value: object, where: str, depth: int = 0) -> None:
    """The content of a message: text, or a list of text parts."""
    if value is None or isinstance(value, str):
        return
    if depth > MAX_PART_DEPTH:
        raise GatewayError(f"{where} is nested too deeply", param=where)
    if not isinstance(value, list):
        raise GatewayError(f"{where} must be text or a list of parts", param=where)
    for index, part in enumerate(value):
        path = f"{where}[{index}]"
        if isinstance(part, str):
            continue
        if not isinstance(part, dict):
            raise GatewayError(f"{path} must be an object with a type", param=path)
        kind = part.get("type")
        if not isinstance(kind, str) or kind not in _TEXT_PARTS:
            if isinstance(kind, str) and kind in _MEDIA:
                raise _media(path, kind)
            raise _unsupported(f"{path}.type", kind, _TEXT_PARTS)
        _refuse_media_keys(part, path)
        check_content(part.get("content"), f"{path}.content", depth + 1)


def check_tools(value: object, allowed: tuple[str, ...], default: str) -> None:
    """Tools that the caller runs itself; tools that the server would run are refused."""
    if value is None:
        return
    for path, tool in _objects(value, "tools"):
        kind = tool.get("type", default)
        if kind not in allowed:
            raise _unsupported(f"{path}.type", kind, frozenset(allowed))


def count_prompts(value: object) -> int:
    """How many prompts a completion has: text, tokens, or a list of either."""
    if isinstance(value, str):
        return 1
    if isinstance(value, list) and value:
        if all(_is_int(item) for item in value):
            return 1
        if all(isinstance(item, str) for item in value) or all(
            isinstance(item, list) and item and all(_is_int(token) for token in item)
            for item in value
        ):
            return len(value)
    raise GatewayError(
        "prompt must be text, a list of texts, a list of token ids or a list of such lists",
        param="prompt",
    )


def check_embedding_input(value: object) -> None:
    """Embeddings: the same shapes as a prompt; nothing that could hold media."""
    try:
        count_prompts(value)
    except GatewayError:
        raise GatewayError(
            "input must be text, a list of texts, a list of token ids or a list of such lists",
            param="input",
        ) from None


def _objects(value: object, where: str) -> Iterator[tuple[str, dict[str, object]]]:
    if not isinstance(value, list):
        raise GatewayError(f"{where} must be a list", param=where)
    for index, item in enumerate(value):
        path = f"{where}[{index}]"
        if not isinstance(item, dict):
            raise GatewayError(f"{path} must be an object", param=path)
        yield path, item


def _refuse_media_keys(value: dict[str, object], path: str) -> None:
    for key in value:
        if key in _MEDIA:
            raise _media(path, key)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _media(path: str, kind: str) -> GatewayError:
    return GatewayError(
        f"{path} holds media ({kind}); this deployment serves text only",
        param=path,
        code="media_not_supported",
    )


def _unsupported(path: str, kind: object, allowed: frozenset[str]) -> GatewayError:
    shown = kind[:64] if isinstance(kind, str) else type(kind).__name__
    return GatewayError(
        f"{path} {shown!r} is not served here; allowed are {', '.join(sorted(allowed))}",
        param=path,
        code="unsupported_value",
    )


_TEXT_PARTS = frozenset(
    {
        "input_text",
        "output_text",
        "reasoning_text",
        "redacted_thinking",
        "refusal",
        "summary_text",
        "text",
        "thinking",
        "tool_reference",
        "tool_result",
        "tool_use",
    }
)
_MEDIA = frozenset(
    {
        "audio",
        "audio_embeds",
        "audio_url",
        "document",
        "file",
        "image",
        "image_embeds",
        "image_pil",
        "image_url",
        "input_audio",
        "input_file",
        "input_image",
        "input_video",
        "prompt_embeds",
        "source",
        "video",
        "video_embeds",
        "video_url",
    }
)
_RESPONSE_ITEMS = frozenset(
    {
        "custom_tool_call",
        "custom_tool_call_output",
        "function_call",
        "function_call_output",
        "message",
        "reasoning",
    }
)
