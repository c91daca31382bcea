"""The parts of the slot server that need no llama.cpp: names, pieces, options, fields, answers."""

from __future__ import annotations

import ctypes
import hashlib
import json
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvrun.config import parse_config
from kvrun.engines.llama_cpp import launch
from kvrun.engines.llama_cpp.answers import EventReader, whole_answer
from kvrun.engines.llama_cpp.arguments import (
    ISOLATION,
    EngineArgumentError,
    ServerShape,
    check_arguments,
    server_arguments,
)
from kvrun.engines.llama_cpp.checkpoints import CHECKPOINT_TOKENS, chain_hashes, chunk_hash
from kvrun.engines.llama_cpp.fields import (
    CHAT_PATH,
    UNGOVERNED_PATHS,
    RequestError,
    check_window,
    passed_fields,
    read_request,
)
from kvrun.engines.llama_cpp.pieces import (
    HEAD_BYTES,
    PIECE_BYTES,
    PieceError,
    StateHead,
    decode_head,
    encode_head,
)
from kvrun.engines.llama_cpp.scratch import Scratch
from kvrun.engines.llama_cpp.server_process import apply_arguments
from kvrun.engines.llama_cpp.statefile import (
    SparseFile,
    StateFormatError,
    is_ordered,
    saved_tokens,
    zero_state,
)
from kvrun.errors import KvrunError

TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=300)


def _file(data: bytes) -> SparseFile:
    """A state of these bytes, without a hole."""
    return SparseFile(len(data), ((0, data),))


@given(TOKENS, st.integers(0, 299))
def test_a_state_is_named_by_every_token_before_its_end(tokens: list[int], at: int) -> None:
    names = chain_hashes(tokens)
    assert len(names) == len(tokens) // CHECKPOINT_TOKENS
    if at < len(tokens):
        changed = chain_hashes([*tokens[:at], tokens[at] ^ 1, *tokens[at + 1 :]])
        same = [one == other for one, other in zip(names, changed, strict=True)]
        assert same == [index < at // CHECKPOINT_TOKENS for index in range(len(names))]


@given(st.integers(1, 3 * PIECE_BYTES))
def test_a_state_cut_into_pieces_is_whole_again(size: int) -> None:
    content = (b"%d." % size * (size // 2 + 1))[:size]
    out, back = Scratch(), Scratch()
    piece = ctypes.create_string_buffer(b"\xff" * PIECE_BYTES, PIECE_BYTES)
    try:
        out.fill(_file(content))
        out.open()
        head = StateHead(64, size)
        out.describe(head)
        back.expect_head()
        out.copy_out(0, ctypes.addressof(piece))
        back.copy_in(0, ctypes.addressof(piece))
        assert back.found_head() == head
        back.grow(head)
        for number in range(1, head.pieces):
            out.copy_out(number, ctypes.addressof(piece))
            back.copy_in(number, ctypes.addressof(piece))
        assert not any(piece.raw[(HEAD_BYTES + size) - (head.pieces - 1) * PIECE_BYTES :])
        assert bytes(back.view) == content
    finally:
        out.close()
        back.close()


def test_a_wiped_scratch_holds_nothing() -> None:
    scratch = Scratch()
    scratch.fill(_file(b"secret" * 1000))
    scratch.wipe()
    assert scratch.size_bytes == 0
    assert Path(f"/proc/self/fd/{scratch.name}").read_bytes() == b""
    scratch.close()


@pytest.mark.parametrize(
    "damage",
    [
        lambda head: head[:-1],
        lambda head: b"X" + head[1:],
        lambda head: head[:8] + struct.pack("<I", 2) + head[12:],
        lambda head: head[:12] + bytes(8) + head[20:],
        lambda head: head[:20] + bytes(8) + head[28:],
        lambda head: head[:20] + b"\xff" * 8 + head[28:],
        lambda head: head[:-1] + b"\x01",
    ],
)
def test_a_head_that_is_none_is_refused(damage: object) -> None:
    head = encode_head(StateHead(128, 5000))
    assert decode_head(head) == StateHead(128, 5000)
    with pytest.raises(PieceError):
        decode_head(damage(head))  # type: ignore[operator]


def state_file(
    tokens: list[int],
    positions: list[int],
    *,
    transposed: bool = False,
    packed: bool = False,
    words: int = 2,
) -> bytes:
    """A state of two streams, the second unused, with one cache of two layers."""
    numbers = [-1, 1, len(tokens), *tokens, 0] if packed else tokens
    count = len(numbers)
    parts = [b"qsgg" + struct.pack("<II", 2, count), struct.pack(f"<{count}i", *numbers)]
    parts.append(struct.pack("<II", 2, len(positions)))
    parts += [struct.pack("<iIi", position, 1, 0) for position in positions]
    parts.append(struct.pack("<II", transposed, 2) + bytes(4 * words))
    rows = b"k" * 16 * len(positions)
    parts += [struct.pack("<iQ", 1, 16) + rows] * 2
    values = struct.pack("<iII", 1, 2, 8) if transposed else struct.pack("<iQ", 1, 16)
    parts += [values + rows] * 2
    parts.append(struct.pack("<I", 0))
    return b"".join(parts)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("words", [0, 1, 2])
def test_a_state_is_read_and_its_zeros_cover_every_cell(
    transposed: bool, packed: bool, words: int
) -> None:
    file = state_file([5, 6, 7], [0, 1, 2], transposed=transposed, packed=packed, words=words)
    assert saved_tokens(memoryview(file)) == [5, 6, 7]
    assert is_ordered(memoryview(file))
    zeros = zero_state(memoryview(file), 100)
    whole = bytearray(zeros.size_bytes)
    for offset, data in zeros.pieces:
        whole[offset : offset + len(data)] = data
    assert b"k" not in whole
    assert is_ordered(memoryview(whole))
    assert len(whole) > 100 * 16 * 4


@pytest.mark.parametrize(
    "file",
    [
        state_file([5], [0])[:-1],
        state_file([5], [0]) + b"\x01",
        b"qsgg" + struct.pack("<II", 2, 1000),
        b"",
    ],
)
def test_a_state_file_of_another_form_is_refused(file: bytes) -> None:
    with pytest.raises(StateFormatError):
        zero_state(memoryview(file), 8)
    assert not is_ordered(memoryview(state_file([5, 6], [1, 0])))


@pytest.mark.parametrize(
    "argument",
    ["--cache-ram", "-cram=1", "--no-cache-idle-slots", "-sps", "--kv-unified", "-kvu",
     "--cache-reuse=8", "--ctx-checkpoints", "--slots", "--slot-save-path", "--api-key", "--host",
     "-v", "--log-file", "-m", "-c", "-np", "--lookup-cache-static", "--model-draft", "model.gguf"],
)  # fmt: skip
def test_an_unsafe_argument_is_refused_by_its_name(argument: str) -> None:
    with pytest.raises(EngineArgumentError, match=argument.partition("=")[0]):
        check_arguments([argument, "1"])


def test_harmless_arguments_pass_and_what_isolates_stands_last() -> None:
    assert check_arguments(["-t", "4", "--flash-attn=on", "--no-warmup"]) == (
        "--threads", "4", "--flash-attn", "on", "--no-warmup",
    )  # fmt: skip
    shape = ServerShape(Path("m.gguf"), "m", Path("l.sock"), 4096, 2, 2, ("--batch-size", "64"))
    line = server_arguments(shape)
    assert line[line.index("--ctx-size") + 1] == "8192"
    assert line[-len(ISOLATION) - 2 : -2] == [*ISOLATION]


class _Recorder:
    def __init__(self) -> None:
        self.model, self.cpuparams, self.cpuparams_batch = (type("P", (), {})() for _ in range(3))


def test_no_argument_is_left_out_for_the_embedded_server() -> None:
    shape = ServerShape(Path("m.gguf"), "m", Path("l.sock"), 4096, 2, 2, ("--batch-size", "64"))
    params = _Recorder()
    apply_arguments(params, server_arguments(shape), None)
    expected = {
        "cache_ram_mib": 0, "cache_idle_slots": False, "kv_unified": False, "swa_full": True,
        "slot_prompt_similarity": 0.0, "n_cache_reuse": 0, "n_ctx_checkpoints": 0,
        "endpoint_slots": False, "ctx_shift": False, "n_batch": 64,
    }  # fmt: skip
    assert expected.items() <= vars(params).items()
    with pytest.raises(ValueError, match="--mirostat"):
        apply_arguments(params, ["--mirostat", "2"], None)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ('extra_args = ["--cache-ram", "8192"]', "--cache-ram"),
        ("env = { LLAMA_ARG_CACHE_RAM = '8192' }", "LLAMA_ARG_CACHE_RAM"),
        ("env = { KVRUN_SOCKET = '/x' }", "KVRUN_SOCKET"),
        ("tensor_parallel_size = 2", "tensor_parallel_size"),
    ],
)
def test_an_operators_override_is_refused_before_anything_starts(settings: str, told: str) -> None:
    text = f'[deployment]\ncontext_window = 1024\n[engine]\nkind = "llama.cpp"\n{settings}\n'
    config = parse_config(text, {}, source=Path("/tmp/kvrun.toml"))
    with pytest.raises(KvrunError, match=told):
        launch.engine_command(config)


def test_only_known_fields_reach_llama_cpp() -> None:
    body = {
        "messages": [], "temperature": 0, "repetition_penalty": 1.1, "user": "u", "max_tokens": 5,
        "cache_salt": "s", "kv_transfer_params": {"kvrun_claim": "c", "id_slot": 1}, "n": 1,
        "min_tokens": 0, "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    asked = read_request(CHAT_PATH, body)
    assert (asked.claim, asked.salt, asked.max_tokens, asked.stream) == ("c", "s", 5, True)
    assert asked.fields == {
        "messages": [], "temperature": 0, "repeat_penalty": 1.1, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip


@pytest.mark.parametrize(
    "field",
    ["id_slot", "cache_prompt", "n_cache_reuse", "lora", "return_progress", "n_keep", "grammar",
     "timings_per_token", "samplers", "n_predict", "min_tokens", "echo", "n"],
)  # fmt: skip
def test_a_field_that_chooses_a_slot_or_is_not_served_is_refused(field: str) -> None:
    with pytest.raises(RequestError, match=field):
        read_request("/v1/completions", {"prompt": "a", field: 2})


STAMPS = {"model": "m", "cache_salt": "s", "kv_transfer_params": {"kvrun_claim": "c"}}


@pytest.mark.parametrize(
    ("path", "asked", "without_effect"),
    [
        (
            "/v1/embeddings",
            {"input": ["a", "b"], "encoding_format": "base64"},
            {"user": "u", "dimensions": None},
        ),
        (
            "/v1/responses",
            {"input": "a", "tools": [], "max_output_tokens": 5, "top_p": 0.5, "stream": True},
            {"store": False, "truncation": "disabled", "text": {"format": {"type": "text"}}},
        ),
        (
            "/v1/messages",
            {"messages": [], "system": "s", "max_tokens": 5, "stop_sequences": ["x"]},
            {"metadata": {"user_id": "u"}, "service_tier": "auto"},
        ),
    ],
)
def test_only_the_listed_fields_reach_llama_cpps_own_paths(
    path: str, asked: dict[str, object], without_effect: dict[str, object]
) -> None:
    assert passed_fields(path, {**asked, **without_effect, **STAMPS}) == asked


@pytest.mark.parametrize("path", sorted(UNGOVERNED_PATHS))
@pytest.mark.parametrize(
    ("field", "value"),
    [("id_slot", 1), ("cache_prompt", True), ("n_cache_reuse", 64), ("lora", []), ("n_predict", 9),
     ("grammar", "root ::= x"), ("samplers", []), ("return_progress", True), ("n_keep", 1),
     ("dimensions", 8), ("truncation", "auto"), ("text", {"format": {"type": "json_object"}}),
     ("prompt", "p"), ("vllm_xargs", {"a": 1}), ("store", True)],
)  # fmt: skip
def test_a_field_beside_the_list_is_refused_on_llama_cpps_own_paths(
    path: str, field: str, value: object
) -> None:
    with pytest.raises(RequestError, match=field) as refused:
        passed_fields(path, {**STAMPS, field: value})
    assert refused.value.param == field


@pytest.mark.parametrize("prompt", [None, 3, [], ["a", "b"], [[1], [2]], [1, "a"], [-1], [True]])
def test_a_prompt_is_one_text_or_one_list_of_tokens(prompt: object) -> None:
    with pytest.raises(RequestError):
        read_request("/v1/completions", {"prompt": prompt})


def test_the_window_bounds_prompt_and_answer() -> None:
    assert check_window(10, None, 100) == 90
    assert check_window(10, 90, 100) == 90
    for tokens, answer in ((100, None), (10, 91)):
        with pytest.raises(RequestError, match="100"):
            check_window(tokens, answer, 100)


@given(st.integers(1, 40))
def test_a_stream_loses_its_timings_and_tells_its_true_reuse(cut: int) -> None:
    progress = {"choices": [], "prompt_progress": {"total": 9, "cache": 7, "processed": 7}}
    last = {
        "choices": [],
        "usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 7}},
        "timings": {"cache_n": 7, "prompt_n": 2, "predicted_n": 3},
    }
    text = {"choices": [{"text": 'he said "timings" and \\"usage\\"'}]}
    stream = b"".join(b"data: " + json.dumps(e).encode() + b"\n\n" for e in (progress, text, last))
    stream += b": ping\n\ndata: [DONE]\n\n"
    reader = EventReader()
    reader.reused = 4
    events = [e for at in range(0, len(stream), cut) for e in reader.feed(stream[at : at + cut])]
    assert events[0].cache_n == 7
    assert events[0].data == b""
    told = json.loads(events[2].data[6:])
    assert told["usage"]["prompt_tokens_details"] == {"cached_tokens": 4}
    assert "timings" not in told
    assert json.loads(events[1].data[6:]) == text
    assert events[2].timings is not None
    assert events[2].timings.predicted_n == 3
    assert b"".join(event.data for event in events).endswith(b"data: [DONE]\n\n")


def test_a_whole_answer_tells_its_true_reuse() -> None:
    body = json.dumps({"usage": {"prompt_tokens": 9}, "timings": {"cache_n": 8}}).encode()
    assert json.loads(whole_answer(body, 5)) == {
        "usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 5}}
    }


def test_pieces_of_one_state_have_names_of_their_own() -> None:
    chain = chain_hashes(list(range(64)))[0]
    assert len({chunk_hash(chain, piece) for piece in range(50)}) == 50


def test_names_and_pieces_are_those_of_the_specification() -> None:
    vectors = json.loads((Path(__file__).parents[1] / "vectors/slot-states.json").read_text())
    for case in vectors["names"]:
        chain = chain_hashes(case["tokens"])
        assert [link.hex() for link in chain] == case["chain"]
        names = [[chunk_hash(link, piece).hex() for piece in (0, 1, 300)] for link in chain]
        assert names == case["names"]
    buffer = ctypes.create_string_buffer(PIECE_BYTES)
    for case in vectors["pieces"]:
        head = StateHead(case["tokens"], case["size_bytes"])
        assert encode_head(head).hex() == case["head"]
        scratch = Scratch()
        scratch.fill(_file(bytes(at * 31 % 251 for at in range(head.size_bytes))))
        scratch.open()
        scratch.describe(head)
        found = []
        for piece in range(head.pieces):
            scratch.copy_out(piece, ctypes.addressof(buffer))
            found.append(hashlib.sha256(buffer.raw).hexdigest())
        assert found == case["pieces_sha256"]
        scratch.close()
