"""The record: a Merkle log of events that proves itself offline."""
