"""Other systems measured beside this one: how to install, run and check each."""
