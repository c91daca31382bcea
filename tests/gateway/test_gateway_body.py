import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvrun.gateway.body import CheckedBody, check_body, stamp_body
from kvrun.gateway.errors import GatewayError
from kvrun.gateway.jsonbody import encode_object, parse_object
from kvrun.gateway.routes import ROUTES, find_route

CHAT = ROUTES["/v1/chat/completions"]
COMPLETIONS = ROUTES["/v1/completions"]
RESPONSES = ROUTES["/v1/responses"]
MESSAGES = ROUTES["/v1/messages"]
EMBEDDINGS = ROUTES["/v1/embeddings"]
SMALLEST: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1},
    "/v1/embeddings": {"input": "hi"},
}
GOVERNED = [
    "cache_salt",
    "kv_transfer_params",
    "ec_transfer_params",
    "kv_hints",
    "session_id",
    "request_id",
    "priority",
    "data_parallel_rank",
]


def check(path: str, **changes: Any) -> CheckedBody:
    return check_body(ROUTES[path], {"model": "m", **SMALLEST[path], **changes})


def chat(**changes: Any) -> CheckedBody:
    return check("/v1/chat/completions", **changes)


def message_of(call: Any, *arguments: Any, **named: Any) -> str:
    with pytest.raises(GatewayError) as caught:
        call(*arguments, **named)
    assert caught.value.status == 400
    return caught.value.message


@pytest.mark.parametrize("path", SMALLEST)
def test_the_smallest_request_passes(path: str) -> None:
    assert check(path).uses == 1


@pytest.mark.parametrize("path", SMALLEST)
@pytest.mark.parametrize("name", GOVERNED)
@pytest.mark.parametrize("value", [None, "x", {}, [], 0])
def test_a_governed_field_is_refused_whatever_it_holds(path: str, name: str, value: Any) -> None:
    assert (
        message_of(check, path, **{name: value})
        == f"{name!r} is set by the gateway and may not be set by a client"
    )


@pytest.mark.parametrize(
    "name", ["Cache_Salt", "CACHE_SALT", "KV_Transfer_Params", "Session_ID", "cache_\u017falt"]
)
def test_another_spelling_of_a_governed_field_is_refused_too(name: str) -> None:
    assert "is set by the gateway" in message_of(chat, **{name: "x"})


@pytest.mark.parametrize("path", SMALLEST)
@pytest.mark.parametrize(
    "name",
    ["extra_body", "cache-salt", " cache_salt", "cache_salt ", "cache_salt\x00", "kv", "",
     "kvrun_claim", "sampling_params", "lora_request", "best", "chat_template"],
)  # fmt: skip
def test_an_unknown_field_is_refused_by_name(path: str, name: str) -> None:
    assert message_of(check, path, **{name: {"cache_salt": "x"}}) == f"unknown field {name!r}"


@pytest.mark.parametrize(
    "name",
    ["kv_transfer_params", "kvrun_claim", "KV_x", "kv", "session_id", "Session_Id",
     "ec_transfer_params", "cache_salt", "priority", "request_id"],
)  # fmt: skip
def test_reserved_vllm_xargs_are_refused(name: str) -> None:
    assert (
        message_of(chat, vllm_xargs={name: "x"})
        == f"'vllm_xargs.{name}' is set by the gateway and may not be set by a client"
    )


def test_other_vllm_xargs_pass_and_must_be_an_object() -> None:
    assert chat(vllm_xargs={"my_plugin": 1}).fields["vllm_xargs"] == {"my_plugin": 1}
    assert message_of(chat, vllm_xargs=[["cache_salt", "x"]]) == "vllm_xargs must be an object"
    assert (
        message_of(chat, chat_template_kwargs={"chat_template": "x"})
        == "unknown field 'chat_template_kwargs.chat_template'"
    )


@pytest.mark.parametrize(
    ("part", "where"),
    [
        ({"type": "image_url", "image_url": {"url": "data:"}}, "image_url"),
        ({"type": "input_audio", "input_audio": {}}, "input_audio"),
        ({"type": "video_url", "video_url": {}}, "video_url"),
        ({"type": "file", "file": {}}, "file"),
        ({"type": "image", "source": {}}, "image"),
        ({"type": "prompt_embeds", "data": ""}, "prompt_embeds"),
        ({"type": "text", "text": "x", "image_url": "data:"}, "image_url"),
        ({"type": "text", "text": "x", "uuid": "u", "image_url": None}, "image_url"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_a_media_part_is_refused(path: str, part: dict[str, Any], where: str) -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "look"}, part]}]
    assert (
        message_of(check, path, messages=messages)
        == f"messages[0].content[1] holds media ({where}); this deployment serves text only"
    )


@pytest.mark.parametrize("part", [{"image_url": "data:"}, {"type": None}, {"type": ["text"]}, {}])
def test_a_part_without_a_known_type_is_refused(part: dict[str, Any]) -> None:
    messages = [{"role": "user", "content": [part]}]
    assert "is not served here; allowed are" in message_of(chat, messages=messages)


def test_media_inside_a_tool_result_is_refused() -> None:
    inner = {"type": "tool_result", "content": [{"type": "image", "source": {}}]}
    messages = [{"role": "user", "content": [inner]}]
    assert "holds media (image)" in message_of(check, "/v1/messages", messages=messages)


def test_a_tool_call_may_be_about_an_image() -> None:
    part = {"type": "tool_use", "id": "1", "name": "f", "input": {"image_url": "http://x"}}
    messages = [{"role": "assistant", "content": [part]}]
    assert check("/v1/messages", messages=messages).uses == 1


def test_an_echoed_assistant_message_passes_with_its_empty_fields() -> None:
    messages = [{"role": "assistant", "content": "x", "audio": None, "refusal": None}]
    assert chat(messages=messages).uses == 1
    messages[0]["audio"] = {"id": "a"}  # type: ignore[assignment]
    assert "messages[0] holds media (audio)" in message_of(chat, messages=messages)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("store", True),
        ("store", "false"),
        ("previous_response_id", "resp_1"),
        ("conversation", "conv_1"),
        ("prompt", {"id": "p"}),
        ("background", True),
    ],
)
def test_state_kept_by_the_server_is_refused(name: str, value: Any) -> None:
    allowed = "null or false" if name in ("store", "background") else "null"
    assert message_of(check, "/v1/responses", **{name: value}) == (
        f"{name} must be left out or {allowed}: this deployment keeps no conversations;"
        " send the whole conversation as input"
    )


def test_responses_are_never_stored() -> None:
    assert check("/v1/responses").fields["store"] is False
    assert check("/v1/responses", store=False, previous_response_id=None).fields["store"] is False
    assert message_of(chat, store=True) == (
        "store must be left out or null or false: this deployment keeps no conversations"
    )
    assert message_of(chat, store=0).startswith("store must be left out")


@pytest.mark.parametrize(
    "kind", ["item_reference", "computer_call", "mcp_call", "image_generation_call", 5, [], {}]
)
def test_response_items_that_refer_to_the_server_are_refused(kind: Any) -> None:
    assert "input[0].type" in message_of(check, "/v1/responses", input=[{"type": kind}])


def test_media_in_a_response_item_is_refused() -> None:
    item = {"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}
    assert "input[0].content[0] holds media (input_image)" in message_of(
        check, "/v1/responses", input=[item]
    )
    output = {"type": "function_call_output", "output": [{"type": "input_file"}]}
    assert "input[0].output[0] holds media (input_file)" in message_of(
        check, "/v1/responses", input=[output]
    )


@pytest.mark.parametrize("kind", ["mcp", "web_search", "code_interpreter", None])
def test_tools_that_the_server_would_run_are_refused(kind: Any) -> None:
    assert "tools[0].type" in message_of(check, "/v1/responses", tools=[{"type": kind}])
    assert check("/v1/responses", tools=[{"type": "function", "name": "f"}]).uses == 1


@pytest.mark.parametrize(
    ("prompt", "n", "uses"),
    [
        ("a", None, 1),
        (["a", "b"], None, 2),
        ([1, 2, 3], 4, 4),
        ([[1], [2, 3]], 3, 6),
    ],
)
def test_uses_are_prompts_times_choices(prompt: Any, n: int | None, uses: int) -> None:
    assert check("/v1/completions", prompt=prompt, n=n).uses == uses


@pytest.mark.parametrize(
    "prompt", [[], None, 5, {"prompt": "x"}, ["a", 1], [[]], [["a"]], [True], [{"a": 1}]]
)
def test_a_prompt_of_another_shape_is_refused(prompt: Any) -> None:
    assert message_of(check, "/v1/completions", prompt=prompt).startswith("prompt must be text")


@pytest.mark.parametrize("n", [0, -1, 129, "2", 1.0, True, [1]])
def test_choices_are_a_whole_number(n: Any) -> None:
    assert message_of(chat, n=n) == "n must be a whole number from 1 to 128"


def test_more_engine_requests_than_a_claim_allows_are_refused() -> None:
    assert message_of(check, "/v1/completions", prompt=["x"] * 100, n=41) == (
        "n times the number of prompts is 4100; at most 4096 are allowed"
    )


def test_what_cannot_be_counted_or_streamed_is_refused() -> None:
    assert message_of(chat, use_beam_search=True) == "beam search is not served here"
    assert message_of(chat, stream="yes") == "stream must be true or false"
    assert message_of(check, "/v1/completions", best_of=2).startswith("best_of must be left out")
    assert message_of(check, "/v1/completions", prompt_embeds="x").startswith("'prompt_embeds'")
    assert message_of(chat, modalities=["text", "audio"]).startswith("modalities must be ['text']")
    assert message_of(check, "/v1/embeddings", input=[{"image": "x"}]).startswith("input must be")


@pytest.mark.parametrize(
    "text",
    [
        '{"a":1,"a":2}',
        '{"messages":[],"cache_salt":"x","messages":[]}',
        '{"x":{"y":[{"k":1,"k":1}]}}',
        '{"cache_salt":null,"cache_\\u0073alt":1}',
    ],
)
def test_a_repeated_key_is_refused_at_any_depth(text: str) -> None:
    assert message_of(parse_object, text.encode()).endswith("stands twice in one JSON object")


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "the body is not valid JSON"),
        (b"[]", "the body must be a JSON object"),
        (b"null", "the body must be a JSON object"),
        (b'{"a":NaN}', "NaN is not a JSON value"),
        (b'{"a":-Infinity}', "-Infinity is not a JSON value"),
        (b'{"a":1}{"b":2}', "the body is not valid JSON"),
        (b'{"a":"\xff"}', "the body is not UTF-8"),
        ('{"a":1}'.encode("utf-16"), "the body is not"),
        (b"\xef\xbb\xbf{}", "the body is not valid JSON"),
        (b'{"a":' + b"[" * 100_000, "the body is nested too deeply"),
        (b'{"a":' + b"9" * 5000 + b"}", "the body is not valid JSON"),
    ],
)
def test_a_body_that_is_no_json_object_is_refused(raw: bytes, why: str) -> None:
    assert why in message_of(parse_object, raw)


def test_what_json_text_cannot_carry_is_refused() -> None:
    body = parse_object(b'{"a":"\\ud800"}')
    assert message_of(encode_object, body).startswith("the body holds a value that cannot")


def test_large_numbers_pass_exactly_or_not_at_all() -> None:
    text = b'{"a":%d,"b":0.1}' % 2**70
    assert encode_object(parse_object(text)) == text
    assert message_of(parse_object, b'{"a":1e400}') == "the number 1e400 is too large"


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False,
    allow_infinity=False) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), JSON_VALUES, max_size=5))
def test_what_passes_means_the_same_to_the_engine(value: dict[str, object]) -> None:
    try:
        parsed = parse_object(json.dumps(value).encode())
        written = encode_object(parsed)
    except GatewayError:
        assert any("\ud800" <= c <= "\udfff" for c in str(value))
        return
    assert json.loads(written) == value


@given(st.dictionaries(st.text(max_size=20), st.none() | st.text(max_size=5), max_size=4))
def test_nothing_but_listed_fields_reaches_the_engine(extra: dict[str, Any]) -> None:
    body = {**SMALLEST["/v1/chat/completions"], **extra}
    try:
        checked = check_body(CHAT, body)
    except GatewayError:
        return
    assert set(checked.fields) <= CHAT.fields


def test_the_stamp_is_salt_and_claim_and_leaves_the_original_alone() -> None:
    fields: dict[str, object] = {"model": "m"}
    assert stamp_body(fields, salt="s", claim="t") == {
        "model": "m",
        "cache_salt": "s",
        "kv_transfer_params": {"kvrun_claim": "t"},
    }
    assert stamp_body(fields, salt="s", claim=None) == {"model": "m", "cache_salt": "s"}
    assert fields == {"model": "m"}


@pytest.mark.parametrize(
    "path",
    ["/invocations", "/generative_scoring", "/inference/v1/generate", "/tokenize", "/detokenize",
     "/v1/chat/completions/", "/v1/chat/completions/batch", "/V1/chat/completions",
     "/v1/responses/x",
     "/v1//completions", "/v1/messages/count_tokens", "/reset_prefix_cache",
     "/metrics/../v1/models",
     "/v1/audio/speech", "/pooling", "/score", "/v1/load_lora_adapter", "", "/"],
)  # fmt: skip
def test_every_other_path_is_refused(path: str) -> None:
    with pytest.raises(GatewayError) as caught:
        find_route("POST", path)
    assert (caught.value.status, caught.value.message) == (404, "this path is not served here")


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "post"])
def test_every_other_method_is_refused(method: str) -> None:
    with pytest.raises(GatewayError) as caught:
        find_route(method, "/v1/completions")
    assert (caught.value.status, caught.value.allow) == (405, "POST")
    with pytest.raises(GatewayError) as caught:
        find_route("POST", "/v1/models")
    assert (caught.value.status, caught.value.allow) == (405, "GET")
