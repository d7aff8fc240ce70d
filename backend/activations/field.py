"""Polynomials over the prime field of 65521 elements, by which k values at k places take 2k bytes.

A polynomial of degree below k goes through k points. Its coefficients say the value at each of these places, and at any
other place a number that looks random, so that places need not be stored (Ong et al. 2025, TOPLOC, section 4).
"""

import numpy as np
from numpy.typing import NDArray

PRIME = 65521
"""The largest prime below 2^16: an element takes two bytes, and every finite bfloat16 is one (at most 0xFF7F)."""

Elements = NDArray[np.int64]


def _inverses() -> Elements:
    table = np.ones(PRIME, dtype=np.int64)
    for value in range(2, PRIME):
        table[value] = -(PRIME // value) * table[PRIME % value] % PRIME
    return table


_INVERSE: list[Elements] = []  # of each element, made when the first is needed


def inverse(values: Elements) -> Elements:
    """1 / value of each element that is not 0."""
    if not _INVERSE:
        _INVERSE.append(_inverses())
    return _INVERSE[0][values % PRIME]


def interpolated(places: Elements, values: Elements) -> Elements:
    """Return the coefficients of the polynomials through the points of each row, lowest first: [rows, k].

    places, values: [rows, k], elements; the places of a row differ. Newton's divided differences, then Horner's scheme
    from the Newton form.
    """
    newton, count = values % PRIME, places.shape[1]
    for order in range(1, count):
        steps = inverse(places[:, order:] - places[:, : count - order])
        newton[:, order:] = (newton[:, order:] - newton[:, order - 1 : -1]) * steps % PRIME
    found = np.zeros_like(newton)
    for degree, at in enumerate(range(count - 1, -1, -1)):  # found = found * (x - places[at]) + newton[at]
        lower = found[:, :degree] * places[:, at : at + 1]
        found[:, 1 : degree + 1] = found[:, :degree].copy()
        found[:, 0] = newton[:, at]
        found[:, :degree] = (found[:, :degree] - lower) % PRIME
    return found % PRIME


def evaluated(coefficients: Elements, places: Elements) -> Elements:
    """Return the value of one polynomial, [k] coefficients lowest first, at each of the places."""
    found = np.zeros_like(places)
    for coefficient in coefficients[::-1]:
        found = (found * places + coefficient) % PRIME
    return found


def injective_modulus(places: NDArray[np.integer]) -> int:
    """Return the largest number up to PRIME by which all places have different remainders.

    places: [k], different. Raises ValueError if there is none, which needs more places than PRIME.
    """
    for modulus in range(PRIME, 0, -1):
        if len(np.unique(places % modulus)) == len(places):
            return modulus
    raise ValueError("no modulus tells the places apart; give fewer places")
