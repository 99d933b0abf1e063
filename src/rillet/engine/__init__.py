"""The engine: configuration, assembly and the running job."""
