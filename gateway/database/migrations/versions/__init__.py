"""One module for each revision; the file name states its subject."""
