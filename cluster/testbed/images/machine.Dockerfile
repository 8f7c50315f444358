# What an instance of the EC2 stand-in boots: Debian with an SSH server, as its cloud image has it, and no init of its own.
FROM debian:bookworm-slim
RUN apt-get update \
 && apt-get install --yes --no-install-recommends iproute2 openssh-server \
 # Each machine makes host keys of its own when it first boots.
 && rm --force /etc/ssh/ssh_host_*_key* /var/log/*.log \
 && rm --recursive --force /var/lib/apt/lists/* /var/cache/apt/*.bin
CMD ["bash", "/var/lib/cloud/machine"]
