"""Fine-tunes: a LoRA job, and an evaluation that stays beside the weights."""
