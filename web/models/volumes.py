"""Docker volumes that bring a container its quota: what was asked for, until Docker removes them."""

from django.db import models

from web.models.hosts import Node


class Volume(models.Model):
    """One volume of one host's Docker engine. Which containers mount it, their records say (`Container.volume`)."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="volumes")
    name = models.CharField(max_length=255)
    options = models.JSONField(default=dict, help_text="As Docker has passed them on: name to text.")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name"]
        constraints = [models.UniqueConstraint(fields=["node", "name"], name="one_volume_a_name")]

    def __str__(self) -> str:
        return self.name
