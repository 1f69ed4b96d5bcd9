"""Damaged input for every decoder that strangers' bytes reach: a moment of it among the tests, 200 s each by hand."""
