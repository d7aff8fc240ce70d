"""Tests of backend.engine.apart."""
