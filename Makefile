# make demo: the whole story with a real model (no root needed). KEEP=1 leaves it running,
# MODEL=... takes another model, ENGINE=llama.cpp the other engine. make test: everything but the
# recorded long run, which is make test-long; that also makes SGLang an environment of 6.5 GB.
.PHONY: demo test test-long lint pages setup setup-dev wheel clean

demo: setup
	@.venv/bin/kvrun demo $(if $(KEEP),--keep) $(if $(filter llama.cpp,$(ENGINE)),--engine llama.cpp) $(if $(MODEL),--model "$(MODEL)")

test: setup-dev
	@scripts/test.sh $(ARGS)

test-long: setup-dev
	@.venv/bin/python -m pytest -m long --timeout 7200 $(ARGS)
	@scripts/sglang-venv.sh
	@.venv-sglang/bin/python -m pytest -m long tests/engines/test_sglang_cache.py tests/engines/test_sglang_engine.py

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
	rm -rf .venv .venv-sglang dist build .pytest_cache .mypy_cache .ruff_cache

pages: setup-dev
	.venv/bin/python scripts/write_pages.py
