"""How the kubelet and we talk: gRPC over UNIX sockets."""
