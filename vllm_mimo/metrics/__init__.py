"""The plugin's own figures, from the process that knows them to the server's `/metrics`."""
