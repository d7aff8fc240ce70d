"""What a backend's HTTP server costs its engine: streams of tokens over HTTP beside the same work without it."""
