# Every target installs what it needs in .venv: Python 3.10 or newer and pip are enough.
#   make demo        the main job on the sample included in the repository
#   make test        the quick tests         make test-slow   those that take minutes
#   make test-isa    the numerical tests as on older processors (test-isa-avx2: on one kind alone)
#   make test-oldest  with the oldest versions that pyproject.toml allows; test-newest: today's
#   make check       lint, format and types  make fix         fix what can be fixed automatically
# Another Python: make PYTHON=python3.12 demo. pip's own settings (index, proxy) are honoured.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install -c constraints.txt

.PHONY: demo test test-slow check fix clean

demo: .venv/demo.stamp
	$(BIN)/python examples/demo.py

# pyproject.toml passes -q to pytest; a second one would hide the summary. A test uses one thread, so
# there is one process per core; an idle process takes over tests from a busy one.
# Compiled modules are kept even where Python is set not to: every process would compile them again.
test test-slow: export PYTHONDONTWRITEBYTECODE =
test: .venv/full.stamp
	$(BIN)/python -m pytest -n auto --dist worksteal

test-slow: .venv/full.stamp
	$(BIN)/python -m pytest -m slow

# Libraries are limited to older instructions, as a stand-in for processors that are not at hand:
# oneDNN, PyTorch's own loops, MKL, numpy's and scipy's OpenBLAS. OpenVINO and onnxruntime are not
# limited. The limit of AVX-512 is without VNNI and bfloat16.
ISA_TESTS := tests/nn tests/parity tests/exporting tests/inference tests/tasks tests/corpus/test_cooccurrence.py
ISAS := sse41 avx2 avx512 all
LIMITS_sse41 := ONEDNN_MAX_CPU_ISA=SSE41 ATEN_CPU_CAPABILITY=default MKL_ENABLE_INSTRUCTIONS=SSE4_2 \
	OPENBLAS_CORETYPE=Nehalem
LIMITS_avx2 := ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 \
	OPENBLAS_CORETYPE=Haswell
LIMITS_avx512 := ONEDNN_MAX_CPU_ISA=AVX512_CORE ATEN_CPU_CAPABILITY=avx512 \
	MKL_ENABLE_INSTRUCTIONS=AVX512 OPENBLAS_CORETYPE=SkylakeX
LIMITS_all :=
# PyTorch and OpenBLAS believe in instructions that the processor lacks.
NEEDS_sse41 := sse4_2
NEEDS_avx2 := avx2
NEEDS_avx512 := avx512bw
NEEDS_all := flags

.PHONY: test-isa $(ISAS:%=test-isa-%)
test-isa: $(ISAS:%=test-isa-%)

$(ISAS:%=test-isa-%): export PYTHONDONTWRITEBYTECODE =
$(ISAS:%=test-isa-%): test-isa-%: .venv/full.stamp
	@if grep -qw '$(NEEDS_$*)' /proc/cpuinfo; then set -x; \
	env $(LIMITS_$*) $(BIN)/python -m pytest -n auto --dist worksteal $(ISA_TESTS); \
	else echo 'test-isa-$*: this processor has no $(NEEDS_$*); skipped'; fi

# Versions of dependencies that nobody has pinned; torch stays, and onnxscript follows it. The tests
# fix the version of Transformers, which limits that of tokenizers: it is not installed here.
VERSION_TESTS := $(filter-out $(patsubst %,tests/%/,families golden inference inspect parity tasks transformers),\
	$(wildcard tests/[a-z]*/))
EXTRAS := hub,plot,eval,crf,tensorboard,serve,ray,vision,zh,onnx,openvino

.PHONY: test-oldest test-newest
test-oldest test-newest: export PYTHONDONTWRITEBYTECODE =
test-oldest test-newest: test-%:
	$(PYTHON) -m venv .venv/$*
	if [ $* = oldest ]; then grep -oE '"[a-z_-]+(\[[a-z]+\])?>=[0-9.]+"' pyproject.toml | sort -u | \
		sed -E 's/"//g; s/\[.*\]//; s/>=/==/' | grep -vE '^(setuptools|torch|onnxscript|protobuf|openai)='; fi > .venv/$*.txt
	grep ^torch= constraints.txt >> .venv/$*.txt
	.venv/$*/bin/pip install -q -c .venv/$*.txt torch
	.venv/$*/bin/pip install -q -c .venv/$*.txt -e '.[$(EXTRAS)]' \
		pytest pytest-xdist hypothesis pandas openai sentencepiece protobuf seqeval
	.venv/$*/bin/python -m pytest -n auto --dist worksteal $(VERSION_TESTS)

check: .venv/full.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright --threads

fix: .venv/full.stamp
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Your own runs and .venv are kept: both took time to make.
clean:
	rm -rf build dist src/*.egg-info runs/demo .pytest_cache .ruff_cache .hypothesis
	find src tests examples -name __pycache__ -type d -prune -exec rm -rf {} +

# torch by itself first: it is the longest download, and other failures come after it.
.venv/demo.stamp: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || \
	{ echo 'OwnBERT needs Python 3.10 or newer; "$(PYTHON)" is not: make PYTHON=/path/to/python3' >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(PIP) torch
	$(PIP) -e '.[plot,eval]'
	@touch $@

# pyright[nodejs] installs Node as a wheel, so that type checking needs nothing but pip.
.venv/full.stamp: .venv/demo.stamp
	$(PIP) -e '.[plot,eval,test,dev]' 'pyright[nodejs]'
	@touch $@
