"""`eagleray status`: what stands, what runs, how far it is, what it has cost."""
