"""The stock OpenAI client against the gateway, as an application would use it."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import openai
import pytest
from aiohttp import web
from gateway_rig import FakeEngine, Gateway, stream_events


def event(value: dict[str, Any], name: str | None = None) -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(value)}\n\n".encode()


def chat_chunk(delta: dict[str, Any], **extra: Any) -> bytes:
    choices = [{"index": 0, "delta": delta, "finish_reason": None}] if delta else []
    chunk = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return event({**chunk, "choices": choices, **extra})


USAGE = {
    "prompt_tokens": 10,
    "completion_tokens": 3,
    "total_tokens": 13,
    "prompt_tokens_details": {"cached_tokens": 8},
}


async def answer_like_an_engine(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    if request.path == "/v1/chat/completions" and body.get("stream"):
        events = [chat_chunk({"content": word}) for word in ("one ", "two ", "three")]
        events[-1] = chat_chunk({"content": "three"}, kv_transfer_params={"k": 1})
        if (body.get("stream_options") or {}).get("include_usage"):
            events.append(chat_chunk({}, usage=USAGE))
        return await stream_events(request, [*events, b"data: [DONE]\n\n"])
    if request.path == "/v1/chat/completions":
        message: dict[str, Any] = {"role": "assistant", "content": "hi"}
        if body.get("tools"):
            call = {"name": "f", "arguments": '{"x":1}'}
            calls = [{"id": "t1", "type": "function", "function": call}]
            message = {"role": "assistant", "content": None, "tool_calls": calls}
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        return web.json_response(
            {"id": "c1", "object": "chat.completion", "created": 1, "model": "m",
             "choices": choices, "usage": USAGE, "kv_transfer_params": {"k": 1}}
        )  # fmt: skip
    if request.path == "/v1/completions":
        parts = [
            event({"id": "c", "object": "text_completion", "created": 1, "model": "m",
                   "choices": [{"index": 0, "text": text, "finish_reason": None}]})
            for text in ("a", "b", "c")
        ]  # fmt: skip
        return await stream_events(request, [*parts, b"data: [DONE]\n\n"])
    if request.path == "/v1/responses":
        base: dict[str, Any] = {
            "id": "resp_1", "object": "response", "created_at": 1, "model": "m", "output": [],
            "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
            "status": "completed", "kv_transfer_params": {"k": 1},
        }  # fmt: skip
        events = [
            event({"type": "response.created", "sequence_number": 0, "response": base},
                  "response.created"),
            event({"type": "response.output_text.delta", "sequence_number": 1, "item_id": "i",
                   "output_index": 0, "content_index": 0, "delta": "hey", "logprobs": []},
                  "response.output_text.delta"),
            event({"type": "response.completed", "sequence_number": 2, "response": base},
                  "response.completed"),
        ]  # fmt: skip
        return await stream_events(request, events)
    data = [{"object": "embedding", "index": 0, "embedding": [0.5, 0.25]}]
    return web.json_response({"object": "list", "data": data, "model": "m", "usage": USAGE})


@pytest.fixture
async def client(engine: FakeEngine, gateway: Gateway) -> AsyncIterator[openai.AsyncOpenAI]:
    engine.handler = answer_like_an_engine
    async with openai.AsyncOpenAI(
        base_url=f"{gateway.url}/v1",
        api_key="unused",
        max_retries=0,
        default_headers={"X-KV-Tenant": "alice", "X-KV-Session": "s1"},
    ) as made:
        yield made


MESSAGES: Any = [{"role": "user", "content": "hello"}]


async def test_a_chat_completion_with_its_usage(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model="m", messages=MESSAGES, user="u", n=1)
    assert answer.choices[0].message.content == "hi"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 8
    assert "kv_transfer_params" not in (answer.model_extra or {})
    assert (answer._request_id or "").startswith("kvr-")


async def test_a_streamed_chat_with_usage_where_it_was_asked_for(
    client: openai.AsyncOpenAI,
) -> None:
    stream = await client.chat.completions.create(
        model="m", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    text, usage = "", None
    async for chunk in stream:
        assert "kv_transfer_params" not in (chunk.model_extra or {})
        usage = chunk.usage or usage
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
    assert text == "one two three"
    assert usage is not None
    assert usage.total_tokens == 13


async def test_tools_and_their_results_pass(client: openai.AsyncOpenAI) -> None:
    tools: Any = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    first = await client.chat.completions.create(model="m", messages=MESSAGES, tools=tools)
    said = first.choices[0].message
    assert said.tool_calls is not None
    history = [*MESSAGES, said, {"role": "tool", "tool_call_id": "t1", "content": "42"}]
    await client.chat.completions.create(model="m", messages=history, tools=tools)


async def test_a_streamed_completion(client: openai.AsyncOpenAI) -> None:
    stream = await client.completions.create(model="m", prompt="x", stream=True, max_tokens=3)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == "abc"


async def test_a_streamed_response_is_never_stored(
    client: openai.AsyncOpenAI, engine: FakeEngine
) -> None:
    stream = await client.responses.create(model="m", input="hello", stream=True)
    kinds = [item.type async for item in stream]
    assert kinds == ["response.created", "response.output_text.delta", "response.completed"]
    assert engine.last_body["store"] is False


async def test_embeddings_and_models(client: openai.AsyncOpenAI) -> None:
    answer = await client.embeddings.create(model="m", input="x", encoding_format="float")
    assert answer.data[0].embedding == [0.5, 0.25]
    assert [model.id async for model in client.models.list()] == ["m"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda c: c.chat.completions.create(
                model="m", messages=MESSAGES, extra_body={"cache_salt": "x"}
            ),
            "'cache_salt' is set by the gateway and may not be set by a client",
        ),
        (
            lambda c: c.responses.create(model="m", input="x", previous_response_id="resp_1"),
            "previous_response_id must be left out or null: this deployment keeps no"
            " conversations; send the whole conversation as input",
        ),
        (
            lambda c: c.chat.completions.create(
                model="m", messages=MESSAGES, extra_headers={"X-KV-Tenant": "a b"}
            ),
            "the header X-KV-Tenant must be 1 to 128 printable ASCII characters without spaces",
        ),
    ],
)
async def test_a_refusal_is_the_clients_own_error_class(
    client: openai.AsyncOpenAI, call: Callable[[Any], Awaitable[Any]], message: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await call(client)
    assert caught.value.body is not None
    assert caught.value.body["message"] == message  # type: ignore[index]


async def test_an_error_in_a_stream_is_raised(
    client: openai.AsyncOpenAI, engine: FakeEngine
) -> None:
    async def breaking(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(chat_chunk({"content": "one"}))
        assert request.transport is not None
        request.transport.abort()
        return response

    engine.handler = breaking
    stream = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
    with pytest.raises(openai.APIError, match="the engine broke off"):
        async for _ in stream:
            pass
