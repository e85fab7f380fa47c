"""Tables of the shop."""

from django.db import models


class Order(models.Model):
    number = models.IntegerField(primary_key=True)
    article = models.CharField(max_length=100)
    reserved = models.IntegerField(default=0)
    packed = models.BooleanField(default=False)

    def __str__(self) -> str:
        return f"order {self.number}"
