"""What clients and administrators touch: the OpenAI API, the CLI, keys, limits, the request pipeline."""
