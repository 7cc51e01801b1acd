"""Why a job takes as long as it does: the ladder, the ceiling, what-ifs predicted and tried.

Imports sweep and lower floors.
"""
