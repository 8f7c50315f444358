# A stand-in for python:3.11-slim where no image registry can be reached: Debian 12's own Python is 3.11.
FROM debian:bookworm-slim
RUN apt-get update \
 && apt-get install --yes --no-install-recommends \
        ca-certificates python-is-python3 python3 python3-pip python3-pytest python3-venv \
 # python:3.11-slim lets pip write anywhere; Debian's refuses outside of a venv.
 && rm --force /usr/lib/python3.11/EXTERNALLY-MANAGED \
 && rm --recursive --force /var/lib/apt/lists/* /var/cache/apt/*.bin /var/log/*
ENV LANG=C.UTF-8 PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1
CMD ["python3"]
