"""The pytest plugin of Perdure. Outside of the package `perdure`, so that pytest starts without importing it."""
