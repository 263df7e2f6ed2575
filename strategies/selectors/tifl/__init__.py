"""TiFL: the clients of a round come from one tier of speed."""
