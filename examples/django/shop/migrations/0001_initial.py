"""The table of orders."""

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    dependencies = ()
    operations = (
        migrations.CreateModel(
            name="Order",
            fields=[
                ("number", models.IntegerField(primary_key=True, serialize=False)),
                ("article", models.CharField(max_length=100)),
                ("reserved", models.IntegerField(default=0)),
                ("packed", models.BooleanField(default=False)),
            ],
        ),
    )
