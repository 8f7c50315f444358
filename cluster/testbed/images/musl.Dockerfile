# A small image whose shell is linked dynamically against musl, as Alpine's is: what only works with glibc fails here.
# No Debian package contains a program linked against musl, so Debian's dash is compiled with its musl-gcc.
FROM debian:bookworm-slim AS build
LABEL rayroll.testbed.stage=build
RUN sed 's/^deb /deb-src /' /etc/apt/sources.list > /etc/apt/sources.list.d/source.list \
 && apt-get update \
 && apt-get install --yes --no-install-recommends autoconf automake dpkg-dev make musl-tools
WORKDIR /build
RUN apt-get source dash && cd dash-*/ \
 && autoreconf --install \
 && ./configure --host="$(uname -m)-linux-musl" CC=musl-gcc CC_FOR_BUILD=cc CFLAGS=-Os LDFLAGS=-s \
 && make && mkdir -p /out/bin /out/lib \
 && cp src/dash /out/bin/sh && cp /lib/ld-musl-*.so.1 /out/lib/

FROM busybox:latest
RUN rm /bin/sh
COPY --from=build /out /
# The shell is dash on musl; the other commands stay busybox's, which is static.
CMD ["sh"]
