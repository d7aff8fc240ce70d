"""Of the test suite: randomised tests in full, and whether the suite notices faults that are planted in the product."""
