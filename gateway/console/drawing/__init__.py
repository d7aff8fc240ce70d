"""SVG drawings of the console: charts and a map of countries. Only the console may import it."""
