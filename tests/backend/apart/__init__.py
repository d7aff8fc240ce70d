"""Tests of backend.apart."""
