"""What a program on a kcoral server may import of the server's own: see `kcoral.builtins`."""
