"""`eagleray up`: deploy where there is capacity, zone after zone, and remember where that was."""
