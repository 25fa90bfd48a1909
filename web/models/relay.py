"""What the web side wants to be shown of what another host has (web/relay/)."""

import uuid

from django.db import models

from web.models.hosts import Node
from web.models.records import Container


class RelayOrder(models.Model):
    """One session that the node is to begin. It takes the row, once; the web side takes back what nobody took.

    `key` seals what passes in that session and nothing else. What is to be shown has been permitted before.
    """

    class Kind(models.TextChoices):
        OUTPUT = "output"
        TERMINAL = "terminal"
        PORT = "port"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="relay_orders")
    container = models.ForeignKey(Container, on_delete=models.CASCADE, related_name="relay_orders")
    kind = models.CharField(max_length=8, choices=Kind)
    key = models.BinaryField(max_length=32)
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"{self.kind} of {self.container_id}"
