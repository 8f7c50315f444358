# An image for Ray nodes: Ray, rayroll with its extras, and what its substrates start. Built from what is committed:
#   git archive HEAD | docker build --file cluster/node.Dockerfile --tag rayroll-node -
FROM python:3.11-slim AS wheel
COPY . /src
RUN pip wheel --quiet --no-cache-dir --no-deps --wheel-dir /wheels /src

FROM python:3.11-slim
# The one of raycluster.yaml and aws.yaml: driver and nodes must agree on it, and on the minor version of Python.
ARG RAY=2.60.0
# `local` starts bubblewrap, older KubeRay asks for a node's health with wget. For virtual machines add qemu-system-x86.
ARG PACKAGES="bubblewrap wget"
ARG EXTRAS=docker,kubernetes,opensandbox,qemu,wandb,report,cluster
RUN apt-get update \
 && apt-get install --yes --no-install-recommends $PACKAGES \
 && rm --recursive --force /var/lib/apt/lists/* /var/cache/apt/*.bin \
 && useradd --uid 1000 --create-home ray
RUN pip install --quiet --no-cache-dir "ray[default]==$RAY"
COPY --from=wheel /wheels /wheels
RUN pip install --quiet --no-cache-dir "$(echo /wheels/rayroll-*.whl)[$EXTRAS]"
COPY benchmarks /opt/rayroll/benchmarks
COPY cluster/check.py /opt/rayroll/cluster/
# By number: Kubernetes has to see that it is not root.
USER 1000
WORKDIR /home/ray
