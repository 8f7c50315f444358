# The first container of each pod: it holds the pod's network, and ends when it is told to.
FROM busybox:latest
CMD ["sh", "-c", "trap 'exit 0' TERM INT; while :; do sleep 3600 & wait $!; done"]
