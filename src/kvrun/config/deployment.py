"""``[deployment]``: which model is served, to whom it belongs, and how strictly."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, field_validator

from kvrun.config.values import ScopeId, Section, setting

PublicKeyHex = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
"""The 32 bytes of an Ed25519 public key."""


RESERVED_NAME = "control"
"""What no deployment is named: the control plane's log is WORKSPACE/control/HOST."""


class DeploymentSection(Section):
    """One served model with one governed cache."""

    workspace: ScopeId = setting("default", "Workspace that owns the deployment.")
    name: ScopeId = setting("default", "Name of the deployment; keys and blocks are bound to it.")
    model: str = Field(
        default="demo",
        min_length=1,
        description=(
            'Model to serve: a folder, a Hugging Face id, "demo" (Gemma 3 270M, made on first use) '
            'or "tiny" (random weights: its answers mean nothing).'
        ),
    )
    served_model_name: str | None = setting(
        None, "Name that clients put in `model`; unset: the model's own name."
    )
    context_window: int | None = setting(
        None,
        "Longest prompt plus answer in tokens; unset: the model's catalogue entry, else 32000.",
        ge=16,
        le=10_000_000,
    )
    stateless: bool = setting(
        False, "Keep no KV after a request: no disk tier, a fresh salt a request, no reuse."
    )
    strict: bool = setting(
        False, "Refuse to start where a protection is weaker here (memory that cannot be locked)."
    )
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = setting(
        "auto", "Number format of the weights and the KV cache's default."
    )
    evaluation_keys: tuple[PublicKeyHex, ...] = setting(
        (),
        "Ed25519 public keys (64 hexadecimal digits each) whose evaluations of fine-tunes count, "
        "besides those in data_dir.",
    )
    unevaluated_reason: str = setting(
        "",
        "Why a fine-tune is served whose evaluation is missing or does not hold; the log keeps it. "
        "Empty: it is refused.",
        max_length=200,
        pattern=r"^[\x20-\x7e]*$",
    )

    @field_validator("name")
    @classmethod
    def _name_is_free(cls, value: str) -> str:
        if value == RESERVED_NAME:
            raise ValueError(
                f"a deployment cannot be named {RESERVED_NAME}: its log would have the name of the "
                "control plane's; choose another name"
            )
        return value
