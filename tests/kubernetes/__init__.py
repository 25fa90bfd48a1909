import scheduler.kubernetes.kubelet  # noqa: F401  # before gRPC and protobuf, which it tells how to be
