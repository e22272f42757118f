# make setup   install everything, and `paradec`, into .venv (Python 3.11 or 3.12; PYTHON= picks it)
# make demo    set up what is missing, then translate 100 sentences by several decoders;
#              TEXT="A dog runs." is translated, too
# make serve   set up what is missing, then serve the demo's model at http://127.0.0.1:8000/
# make test    set up what is missing, then ruff, mypy and the fast tests (minutes)
# make test-slow   the other tests: pipelines, several processes, browser
# make mutants   change the package in one place after another: do the fast tests notice?
# make test-gpu   gates of every method on CUDA (ARGS="--device cpu": on the CPU, no table)
# make wheel   a manylinux_2_28 wheel with the native libraries, and an sdist, into dist/
# make docs    the pages of results, and the documentation as a site with search, into site/html;
#              strict: every link holds
# make docs-check   do committed pages say what results and the demo's models say? (minutes)
# make gallery   draw the pictures of docs/gallery.md again, by the commands there
#
# Everything goes into $(VENV); nothing outside the checkout is touched. Paths are relative, so
# that a checkout whose own path has spaces works.

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
# A text's $ is no variable.
override export TEXT := $(value TEXT)

VPY := $(VENV)/bin/python
STAMP := $(VENV)/.set-up
UNFINISHED := $(VENV)/.unfinished
PIP := "$(VPY)" -m pip install --quiet --disable-pip-version-check --no-warn-script-location
MYPY_PATHS := fairseq_paradec tools
# Files of tests run side by side, one a core: each takes up to 2 GB.
WORKERS := --numprocesses auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

# Run by the interpreter the user picked, which may be of any age: no modern syntax here.
define CHECK_MACHINE
import os, shutil, sys, sysconfig
minor = sys.version_info[:2]
version = "%d.%d" % minor
if version not in ("3.11", "3.12"):
    why = ", on which fairseq is not tested" if minor > (3, 12) else ""
    sys.exit("setup: %s is Python %s%s; 3.11 or 3.12 is needed: make PYTHON=/path/to/python3.12"
             % (sys.executable, version, why))
lacking = []
try:
    import ensurepip, venv
except ImportError as error:
    lacking.append(("python%s-venv" % version, "Python %s lacks the module %s" % (version, error.name)))
given = os.environ.get("CXX", "").split()[:1]
if not any(shutil.which(name) for name in given or ["c++", "g++", "clang++"]):
    lacking.append(("g++", "there is no C++ compiler (%s), nor does CXX name one"
                    % (" ".join(given) or "c++, g++, clang++")))
header = os.path.join(sysconfig.get_paths()["include"], "Python.h")
if not os.path.isfile(header):
    lacking.append(("python%s-dev" % version, "the headers of Python %s are missing (%s)" % (version, header)))
if lacking:
    sys.exit("setup: %s: install what is missing (Debian, Ubuntu: apt-get install %s)"
             % ("; ".join(what for _, what in lacking), " ".join(package for package, _ in lacking)))
endef
export CHECK_MACHINE

MINOR := -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null

.PHONY: help setup demo serve test test-slow mutants test-gpu wheel docs docs-check gallery force
help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

setup: $(STAMP)

demo: $(STAMP)
	@"$(VENV)/bin/paradec" demo $(ARGS) $(if $(TEXT),--text "$$TEXT")

serve: $(STAMP)
	@"$(VENV)/bin/paradec" serve --model data-bin/demo.en-de $(ARGS)

test: $(STAMP)
	"$(VPY)" -m ruff check .
	"$(VPY)" -m ruff format --check --quiet .
	"$(VPY)" -m mypy $(MYPY_PATHS)
	"$(VPY)" -m pytest tests -m "not slow" $(WORKERS) $(ARGS)

test-slow: $(STAMP)
	"$(VPY)" -m pytest tests -m slow $(WORKERS) $(ARGS)

mutants: $(STAMP)
	"$(VPY)" tests/mutants.py $(ARGS)

test-gpu: $(STAMP)
	"$(VPY)" -m pytest tests/gpu --device cuda $(ARGS)

# The wheel is built from the sdist. auditwheel checks which symbols of glibc and libstdc++ the
# libraries use.
wheel: $(STAMP)
	rm -rf build dist
	"$(VPY)" -m build --no-isolation --outdir build
	mkdir -p dist && mv build/*.tar.gz dist
	PATH="$$(cd "$(VENV)" && pwd)/bin:$$PATH" "$(VPY)" -m auditwheel repair \
	    --plat "manylinux_2_28_$$(uname -m)" --wheel-dir dist build/*.whl
	@ls -l dist

docs: $(STAMP)
	"$(VPY)" -m tools.site pages
	"$(VPY)" -m tools.site source
	"$(VPY)" tests/mutants.py --page > site/source/docs/mutants.md
	PYTHONPATH= "$(VPY)" -m mkdocs build --strict
	@echo "made: site/html; to read and search it: python3 -m http.server -d site/html"

docs-check: $(STAMP)
	"$(VPY)" -m tools.site pages --check
	"$(VPY)" -m tools.site gallery --check

gallery: $(STAMP)
	"$(VPY)" -m tools.site gallery

# A PYTHON= of another version than the one in $(VENV) is a wish to set up anew.
ifneq ($(origin PYTHON),file)
ifneq ($(shell "$(PYTHON)" $(MINOR)),$(shell "$(VPY)" $(MINOR)))
$(STAMP): force
endif
endif

# fairseq asks for torchaudio, for speech alone, and what comes is of another release and build than
# torch: it does not load, and transformers ends where it finds it. So it goes again.
# The stamp is written last. $(UNFINISHED) lies there in between, because pip takes a package whose
# copying was cut short for an installed one: after an interruption the environment starts empty.
$(STAMP): requirements.txt setup.py $(wildcard fairseq_paradec/engine/csrc/*)
	@command -v "$(PYTHON)" >/dev/null || { \
	    echo "setup: no interpreter '$(PYTHON)': install Python 3.11 or 3.12, or give one: make PYTHON=/path/to/python3.12" >&2; \
	    exit 1; }
	@"$(PYTHON)" -c "$$CHECK_MACHINE"
	@echo "[1/4] virtual environment in $(VENV)"
	@if [ -e "$(UNFINISHED)" ] \
	    || [ "$$("$(PYTHON)" $(MINOR))" != "$$("$(VPY)" $(MINOR))" ] \
	    || ! "$(VPY)" -m pip --version >/dev/null 2>&1; then \
	    "$(PYTHON)" -m venv --clear "$(VENV)"; \
	fi
	@rm -f "$(STAMP)" && touch "$(UNFINISHED)"
	@echo "[2/4] torch and build tools (the large download)"
	@$(PIP) -c requirements.txt torch numpy cython setuptools wheel
	@echo "[3/4] fairseq (compiled on Python 3.11: a few minutes)"
	@CXX="$${CXX:-$$(command -v c++ || command -v g++ || command -v clang++)}" \
	    $(PIP) -c requirements.txt --no-build-isolation fairseq-fixed
	@echo "[4/4] the rest, and this checkout"
	@$(PIP) --no-build-isolation -r requirements.txt
	@$(PIP) --no-build-isolation --no-deps --editable .
	@"$(VPY)" -m pip uninstall --quiet --yes torchaudio
	@rm -f "$(UNFINISHED)" && touch "$(STAMP)"
	@echo "set up: $(VENV)"
