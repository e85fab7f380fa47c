"""Runs that are worked on because a queue says so: messages, the handler of batches, and ways in from brokers and HTTP."""
