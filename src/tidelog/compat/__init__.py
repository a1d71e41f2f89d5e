"""Other people's formats: the .lpj journal of lplex, candump and canboat captures."""
