# A machine that runs systemd, with the program installed as docs/deploy/image.md says where there are no images:
#   docker build -t fednode-systemd -f tests/support/machines/systemd.Dockerfile .

FROM python:3.11-slim
ARG PIP_EXTRA_INDEX_URL
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
RUN apt-get update \
 && apt-get install -y --no-install-recommends systemd systemd-sysv dbus \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
RUN python3.11 -m venv /opt/fednode
COPY deploy/requirements.txt deploy/torch-cpu.txt deploy/
RUN /opt/fednode/bin/pip install --require-hashes --no-deps -r deploy/requirements.txt
RUN /opt/fednode/bin/pip install -r deploy/torch-cpu.txt
COPY . .
RUN /opt/fednode/bin/pip install --no-index --no-deps --no-build-isolation .
STOPSIGNAL SIGRTMIN+3
# What systemd mounts for a service, as its key, is seen outside that service: so it is where the kernel starts it.
CMD ["sh", "-c", "mount --make-rshared / && exec /sbin/init"]
