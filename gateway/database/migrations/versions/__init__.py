"""One module a revision; the file name says what it brings."""
