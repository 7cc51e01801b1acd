"""`store@loader.store=`: a file format for rows that are read fast; each option satisfies the
Protocol Store."""
