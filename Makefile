# make setup   install everything, and `paradec`, into .venv (PYTHON= picks the Python: 3.11 or 3.12;
#              on 3.13 and 3.14, where fairseq is not tested, the core and what tests it)
# make demo    set up the core (a minute), then translate 100 sentences by several decoders;
#              TEXT="A dog runs." is translated, too. Then all else (minutes; Ctrl-C ends it, and
#              the same again goes on), and the plugin by fairseq's command
# make serve   set up what is missing, then serve the demo's model at http://127.0.0.1:8000/
# make test    set up what is missing, then ruff, mypy and the fast tests (minutes); on Python 3.13
#              and 3.14 those of the core
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
# Two stamps in one environment: the core and this checkout are there; all else is.
CORE := $(VENV)/.core
STAMP := $(VENV)/.set-up
# What a demo needs to begin: of an environment that has all, no more is asked.
READY := $(if $(wildcard $(STAMP)),$(STAMP),$(CORE))
SOURCES := requirements.txt setup.py $(wildcard fairseq_paradec/engine/csrc/*)
PIP := "$(VPY)" -m pip install --quiet --disable-pip-version-check --no-warn-script-location
MYPY_PATHS := fairseq_paradec tools
# What the core's tests need.
TOOLS := pytest pytest-xdist hypothesis ruff fastapi uvicorn prometheus-client
# Files of tests run side by side, one a core: each takes up to 2 GB.
WORKERS := --numprocesses auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

# Run by the interpreter the user picked, which may be of any age: no modern syntax here.
define CHECK_MACHINE
import os, shutil, sys, sysconfig
minor = sys.version_info[:2]
version = "%d.%d" % minor
if version not in ("3.11", "3.12", "3.13", "3.14"):
    sys.exit("setup: %s is Python %s; 3.11 to 3.14 is needed: make PYTHON=/path/to/python3.12"
             % (sys.executable, version))
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

# pip takes a package whose copying was cut short for an installed one. It writes INSTALLER when all
# of a package's files are there; without it the package is forgotten, and pip installs it again.
define FORGET_CUT_SHORT
import pathlib, shutil, sysconfig
for about in pathlib.Path(sysconfig.get_paths()["purelib"]).glob("*.dist-info"):
    if not (about / "INSTALLER").is_file():
        shutil.rmtree(about)
endef
export FORGET_CUT_SHORT

MINOR := -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null

# Whether fairseq is tested on the Python of $(VENV): a command of the shell, and "yes" or nothing.
TAKES_FAIRSEQ := "$(VPY)" -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))'
FAIRSEQ = $(shell $(TAKES_FAIRSEQ) 2>/dev/null && echo yes)
# What a line begins with that says what is left out.
ELSE := fairseq is tested on Python 3.11 and 3.12, not on $$("$(VPY)" $(MINOR))

.PHONY: help setup demo plugin-demo serve test test-slow mutants test-gpu wheel docs docs-check gallery force
help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

setup: $(STAMP)

demo: $(READY)
	@"$(VENV)/bin/paradec" demo $(ARGS) $(if $(TEXT),--text "$$TEXT")
	@trap 'echo "demo: stopped; what was set up stays, and make demo goes on with the rest" >&2; exit 130' INT; \
	    $(MAKE) --no-print-directory plugin-demo

plugin-demo: $(if $(FAIRSEQ),$(STAMP))
	@echo
	@if $(TAKES_FAIRSEQ); then \
	    "$(VENV)/bin/paradec" demo --plugin; \
	else \
	    echo "$(ELSE): left out is the plugin by fairseq's own commands (make demo PYTHON=/path/to/python3.12)."; \
	fi

serve: $(STAMP)
	@"$(VENV)/bin/paradec" serve --model data-bin/demo.en-de $(ARGS)

test: $(STAMP)
	"$(VPY)" -m ruff check .
	"$(VPY)" -m ruff format --check --quiet .
	@if ! $(TAKES_FAIRSEQ); then echo "$(ELSE): left out are mypy, and the tests that need torch or fairseq."; fi
	$(if $(FAIRSEQ),"$(VPY)" -m mypy $(MYPY_PATHS))
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
$(CORE) $(STAMP): force
endif
endif

# A stamp is written last. An environment without one is begun anew.
$(CORE): $(SOURCES)
	@command -v "$(PYTHON)" >/dev/null || { \
	    echo "setup: no interpreter '$(PYTHON)': install Python 3.11 to 3.14, or give one: make PYTHON=/path/to/python3.12" >&2; \
	    exit 1; }
	@"$(PYTHON)" -c "$$CHECK_MACHINE"
	@echo "[1/2] virtual environment in $(VENV)"
	@if [ ! -e "$(CORE)" ] && [ ! -e "$(STAMP)" ] \
	    || [ "$$("$(PYTHON)" $(MINOR))" != "$$("$(VPY)" $(MINOR))" ] \
	    || ! "$(VPY)" -m pip --version >/dev/null 2>&1; then \
	    "$(PYTHON)" -m venv --clear "$(VENV)"; \
	fi
	@"$(VPY)" -c "$$FORGET_CUT_SHORT"
	@echo "[2/2] the core, and its library in C++ (half a minute, beyond downloads)"
	@$(PIP) -c requirements.txt setuptools wheel
	@$(PIP) -c requirements.txt --no-build-isolation --editable .
	@touch "$(CORE)"
	@echo "set up: the core, in $(VENV)"

# fairseq asks for torchaudio, for speech alone, and what comes is of another release and build than
# torch: it does not load, and transformers ends where it finds it. So it goes again.
$(STAMP): $(SOURCES)
	@$(MAKE) --no-print-directory --silent "$(CORE)"
	@"$(VPY)" -c "$$FORGET_CUT_SHORT"
	@set -e; if $(TAKES_FAIRSEQ); then \
	    echo "Next, into $(VENV): torch, fairseq and the rest: 0.6 GB of downloads (4 GB where pip takes torch's build"; \
	    echo "for GPUs), about 6 minutes. Ctrl-C keeps what was shown and set up."; \
	    echo "[1/3] torch (the large download)"; \
	    $(PIP) -c requirements.txt torch numpy cython; \
	    echo "[2/3] fairseq (compiled on Python 3.11: a few minutes)"; \
	    CXX="$${CXX:-$$(command -v c++ || command -v g++ || command -v clang++)}" \
	        $(PIP) -c requirements.txt --no-build-isolation fairseq-fixed; \
	    echo "[3/3] the rest"; \
	    $(PIP) --no-build-isolation -r requirements.txt; \
	    "$(VPY)" -m pip uninstall --quiet --yes torchaudio; \
	else \
	    echo "$(ELSE): set up are the core and what tests it."; \
	    $(PIP) -c requirements.txt $(TOOLS); \
	fi
	@touch "$(STAMP)"
	@echo "set up: $(VENV)"
