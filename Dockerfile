# Translates lines of text on a CPU, by a model folder:
#
#   docker build -t paradec .
#   docker run --rm -i -v "$PWD/my-model:/model:ro" paradec --model /model < input.txt > output.txt
#
# Or serves them over HTTP, with a page at http://localhost:8000/ (docs/serve.md):
#
#   docker run --rm -p 127.0.0.1:8000:8000 -v "$PWD/my-model:/model:ro" --entrypoint paradec paradec \
#       serve --model /model --host 0.0.0.0
#
# The image has neither torch nor fairseq. For what needs them (docs/fairseq.md), with an index of
# torch's CPU builds, which are much smaller:
#
#   docker build --build-arg EXTRAS=fairseq,serve --build-arg PIP_ARGS="--extra-index-url URL" -t paradec .

# For BuildKit, Docker's usual builder since 23.0. Python 3.12, because fairseq-fixed comes as a
# wheel for it: nothing is compiled in the image.
ARG PYTHON=3.12

FROM python:${PYTHON}-bookworm AS wheel
WORKDIR /source
COPY requirements.txt setup.py pyproject.toml MANIFEST.in README.md LICENSE CHANGELOG.md CITATION.cff ./
COPY fairseq_paradec fairseq_paradec
ARG PIP_ARGS=
RUN pip wheel ${PIP_ARGS} --no-deps --wheel-dir /wheels .

FROM python:${PYTHON}-slim-bookworm
ARG EXTRAS=serve
ARG PIP_ARGS=
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    --mount=type=bind,source=requirements.txt,target=/requirements.txt \
    pip install ${PIP_ARGS} --no-cache-dir --constraint /requirements.txt "$(echo /wheels/*.whl)[${EXTRAS}]" \
    && useradd --create-home paradec
USER paradec
WORKDIR /home/paradec
ENTRYPOINT ["paradec", "translate"]
CMD ["--help"]
