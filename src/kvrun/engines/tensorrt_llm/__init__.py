"""The adapter for TensorRT-LLM: interface-checked, not yet run on TensorRT-LLM."""
