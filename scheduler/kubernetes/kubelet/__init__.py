"""What the kubelet and we say to each other, by gRPC over sockets of this node.

Of the two libraries, as much as can be is Python, and read from the environment before either is imported. Protobuf's
own C part has crashed processes by classes that were made at run time (protobuf#12047); our messages are few and
small, and one takes 0.3 ms without it. gRPC's handlers for fork() start its threads in the child, and those crash it;
what this process starts is another program at once.
"""

import os

os.environ["PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"] = "python"
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
