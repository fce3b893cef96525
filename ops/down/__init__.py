"""`eagleray down`: everything of a deployment goes, the results stay, and what still bills is named."""
