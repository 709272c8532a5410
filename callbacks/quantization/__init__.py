"""int8 nets: what may be asked, one file a backend, the table of who serves what, and what each block costs.

A backend can go when its library goes: nothing but `backends` knows it.
"""
