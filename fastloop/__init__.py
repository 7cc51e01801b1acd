"""Which data loading loop is fastest for my data on my machine, why, and how far is it from what
the machine can do?"""
