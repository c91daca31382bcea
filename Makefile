# make demo: the whole story with a real model (no root needed), on llama.cpp. KEEP=1 leaves it
# running, MODEL=... takes another model, ENGINE=vllm the other engine. make test: everything but the
# recorded long run, which is make test-long; that also makes SGLang an environment of 6.5 GB and
# builds a llama-server for a quarter of an hour.
.PHONY: demo test test-long lint pages setup setup-dev wheel clean

# Which vLLM it is (for a GPU or not) venv.sh finds out, where it is told no engine.
DEMO_ENGINE = $(or $(ENGINE),llama.cpp)
demo:
	@ENGINE=$(filter-out vllm,$(DEMO_ENGINE)) scripts/venv.sh
	@.venv/bin/kvrun demo $(if $(KEEP),--keep) --engine $(patsubst vllm%,vllm,$(DEMO_ENGINE)) $(if $(MODEL),--model "$(MODEL)")

test: setup-dev
	@scripts/test.sh $(ARGS)

test-long: setup-dev
	@scripts/test-long.sh $(ARGS)

lint: setup-dev
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy

wheel: setup-dev
	.venv/bin/python -m pip wheel --quiet --no-deps --wheel-dir dist .

setup:
	@scripts/venv.sh

setup-dev:
	@scripts/venv.sh --dev

clean:
	rm -rf .venv .venv-sglang .llama-server dist build .pytest_cache .mypy_cache .ruff_cache

pages: setup-dev
	.venv/bin/python scripts/write_pages.py
