"""What may be asked for: everything that is not listed here is refused.

Field lists follow OpenAI's and Anthropic's public API references and vLLM 0.32's additions
that let a client neither choose a cache nor reach another's request.
"""

from dataclasses import dataclass
from enum import Enum

from kvrun.gateway.errors import GatewayError


class Api(Enum):
    """The request formats the gateway understands."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"
    EMBEDDINGS = "embeddings"


@dataclass(frozen=True, slots=True)
class Route:
    """One path that takes a body. ``carries_claim`` is False where the engine takes no claim."""

    path: str
    api: Api
    fields: frozenset[str]
    carries_claim: bool = True


def find_route(method: str, path: str) -> Route:
    """The route of a POST. Raises GatewayError 404 or 405."""
    route = ROUTES.get(path)
    if route is None:
        if path in READ_PATHS:
            raise GatewayError(
                f"{path} takes GET only", status=405, code="method_not_allowed", allow="GET"
            )
        raise GatewayError("this path is not served here", status=404, code="unknown_path")
    if method != "POST":
        raise GatewayError(
            f"{path} takes POST only", status=405, code="method_not_allowed", allow="POST"
        )
    return route


def _fields(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SAMPLING = _fields(
    """
    model stream temperature top_p seed user metadata
    top_k min_p repetition_penalty stop_token_ids include_stop_str_in_output ignore_eos
    min_tokens skip_special_tokens spaces_between_special_tokens truncate_prompt_tokens
    truncation_side prompt_logprobs logprob_token_ids allowed_token_ids bad_words
    structured_outputs return_tokens_as_token_ids return_token_ids repetition_detection
    thinking_token_budget length_penalty add_special_tokens vllm_xargs stream_interval
    """
)

_CHAT = _SAMPLING | _fields(
    """
    messages frequency_penalty presence_penalty logit_bias logprobs top_logprobs max_tokens
    max_completion_tokens n response_format stop stream_options tools tool_choice
    parallel_tool_calls reasoning_effort verbosity prediction service_tier store modalities
    safety_identifier prompt_cache_key prompt_cache_retention functions function_call
    include_reasoning echo add_generation_prompt continue_final_message documents
    chat_template_kwargs
    """
)

_COMPLETIONS = _SAMPLING | _fields(
    """
    prompt suffix echo frequency_penalty presence_penalty logit_bias logprobs max_tokens n
    best_of stop stream_options response_format safety_identifier
    """
)

_RESPONSES = _fields(
    """
    model input instructions stream stream_options store background conversation prompt
    previous_response_id include max_output_tokens max_tool_calls metadata parallel_tool_calls
    reasoning service_tier temperature text tool_choice tools top_logprobs top_p truncation user
    safety_identifier prompt_cache_key prompt_cache_retention logit_bias include_reasoning top_k
    min_p skip_special_tokens include_stop_str_in_output presence_penalty frequency_penalty
    structured_outputs repetition_penalty seed stop stop_token_ids ignore_eos vllm_xargs
    chat_template_kwargs
    """
)

_MESSAGES = _fields(
    """
    model messages max_tokens metadata output_config thinking stop_sequences stream system
    temperature tool_choice tools top_k top_p service_tier chat_template_kwargs vllm_xargs
    """
)

_EMBEDDINGS = _fields(
    """
    model input encoding_format dimensions user safety_identifier truncate_prompt_tokens
    truncation_side add_special_tokens
    """
)

ROUTES = {
    route.path: route
    for route in (
        Route("/v1/chat/completions", Api.CHAT, _CHAT),
        Route("/v1/completions", Api.COMPLETIONS, _COMPLETIONS),
        Route("/v1/responses", Api.RESPONSES, _RESPONSES),
        Route("/v1/messages", Api.MESSAGES, _MESSAGES),
        Route("/v1/embeddings", Api.EMBEDDINGS, _EMBEDDINGS, carries_claim=False),
    )
}

# GET paths the gateway serves; the middleware has its own list, since it stands in the engine.
MODELS_PATH = "/v1/models"
HEALTH_PATH = "/healthz"
READY_PATH = "/readyz"
METRICS_PATH = "/metrics"
READ_PATHS = frozenset({MODELS_PATH, HEALTH_PATH, READY_PATH, METRICS_PATH})
