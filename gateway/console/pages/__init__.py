"""The pages of the console by area. Only `gateway.console.app` may import it."""
