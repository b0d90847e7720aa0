"""Runs the engines in rounds, compares them with the limit, and says which bars hold."""
