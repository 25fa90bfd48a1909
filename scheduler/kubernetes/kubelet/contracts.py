"""The kubelet's gRPC contracts, as our small .proto files beside this one have them.

`contracts.pb` is what protoc makes of them (`make protocols`); a test compares the two. So a node needs no compiler,
and nothing generated is to be read: messages and services are made here from their descriptions.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf.descriptor import ServiceDescriptor

REGISTRATION = "pluginregistration.Registration"
# What a driver says that it serves → the service that it then has to be.
DRA = {
    "v1.DRAPlugin": "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin",
    "v1beta1.DRAPlugin": "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin",
}

_pool = descriptor_pool.DescriptorPool()
_written = Path(__file__).with_name("contracts.pb").read_bytes()
_files = list(descriptor_pb2.FileDescriptorSet.FromString(_written).file)
# The beta's messages are those of v1, in a package of another name; lengths of names stand in the bytes, so by text.
_v1 = next(file for file in _files if file.package.endswith(".dra.v1"))
_text = str(_v1).replace("dra.v1", "dra.v1beta1").replace("dra_v1", "dra_v1beta1")
_files.append(text_format.Parse(_text, descriptor_pb2.FileDescriptorProto()))
for _file in _files:
    _pool.Add(_file)
# Made once and kept: protobuf's own list of classes is a weak one, and has outlived them (protobuf#12047).
_classes = {
    (name := f"{_file.package}.{each.name}"): message_factory.GetMessageClass(_pool.FindMessageTypeByName(name))
    for _file in _files
    for each in _file.message_type
}


def message(name: str) -> Any:
    """The class of a message, by its full name."""
    return _classes[name]


def service(name: str) -> ServiceDescriptor:
    return _pool.FindServiceByName(name)


def handler(name: str, calls: Mapping[str, Any]) -> grpc.GenericRpcHandler:
    """The service of this name; `calls`: for each of its methods `async def call(request, context)`."""
    methods = {}
    for method in service(name).methods:
        kind = grpc.unary_stream_rpc_method_handler if method.server_streaming else grpc.unary_unary_rpc_method_handler
        methods[method.name] = kind(
            calls[method.name],
            request_deserializer=message(method.input_type.full_name).FromString,
            response_serializer=message(method.output_type.full_name).SerializeToString,
        )
    return grpc.method_handlers_generic_handler(name, methods)
