"""How fast Perdure is on this machine, beside the raw rate of its database."""
