"""What timing_check.py checks, a subject to each module. The checks of a module run in the order in which they stand.

subject.py has the library under test, and comparisons.py what several modules measure with.
"""
